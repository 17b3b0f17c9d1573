"""Every failure the control plane can name.

    EplbError
      InvalidPlacement     a placement breaks a rule of soundness
      InvalidTable         a table has the wrong shape or type
      InvalidReport        a load report cannot be believed
      InvalidOrder         a rank's order contradicts itself or what the rank serves
      InvalidSettings      settings that no deployment can run under
      InvalidMapFile       an expert-map file cannot be read as one
      MisfitPlacement      a placement is sound but made for another deployment shape
      RegistrationRefused  a rank's Hello disagrees with its deployment
      AttachRefused        ranks of a new group did not load the same
      CannotServeOn        the ranks that live cannot go on without the dead
      UnknownDeployment    nobody registered that deployment
      UnknownRank          a message names a rank outside the group
      UnknownPlan          no plan with that id is kept
      UnknownEpoch         no placement is recorded under that epoch
      UnknownPolicy        no policy has that name
      PlanRejected         a plan is sound but must not run
      PlanOvertaken        the placement a plan starts from is no longer served
      InsufficientSamples  the load window cannot carry a plan
      DeploymentFrozen     plans are frozen for a time
      DeploymentHalted     a halt stands until an operator resumes
      DeploymentBusy       another plan is running
      NotReady             the deployment cannot be planned yet
      StaleMessage         a message carries an old incarnation, generation or epoch
      ConflictingMessage   two different contents claim the same number
      StoreConflict        another controller wrote first
      StoreUnavailable     the store did not answer
      NotLeader            this controller does not lead
      Elsewhere            another controller has that deployment
      PlannerFailed        a policy raised or returned something unsound
      PlannerTimeout       a policy did not return before its deadline
      DeadlineExceeded     a wait ended before what was waited for
      InvalidRequest       an operator's request, or a word of a rank, makes no sense as sent
      BindFailed           the server's address cannot be taken
      Unauthenticated      a caller does not say who it is, or not so that it can be believed
      AccessDenied         a caller is known and may not do what it asks
      TooManyRequests      a caller asks more often than is allowed

`code` is stable: it is logged, counted, and sent over gRPC. The text is for people
and says what happened, to whom, what was expected and what happens next.
"""


class EplbError(Exception):
    """Base of every named failure."""

    code = "internal"


class InvalidPlacement(EplbError):
    """A placement breaks a rule of soundness."""

    code = "invalid_placement"


class InvalidTable(EplbError):
    """A table has the wrong shape, type or range."""

    code = "invalid_table"


class InvalidReport(EplbError):
    """A load report cannot be believed; `reason` is one word for the counter."""

    code = "invalid_report"

    def __init__(self, text: str, *, reason: str) -> None:
        self.reason = reason
        super().__init__(text)


class InvalidOrder(EplbError):
    """A rank's order contradicts itself or what the rank serves."""

    code = "invalid_order"


class InvalidSettings(EplbError):
    """Settings that no deployment can run under."""

    code = "invalid_settings"


class InvalidMapFile(EplbError):
    """An expert-map file cannot be read as one."""

    code = "invalid_map_file"


class MisfitPlacement(EplbError):
    """A placement is sound but made for another deployment shape."""

    code = "misfit_placement"


class RegistrationRefused(EplbError):
    """A rank's Hello disagrees with its deployment."""

    code = "registration_refused"


class AttachRefused(EplbError):
    """Ranks of a new group did not load the same; no step runs."""

    code = "attach_refused"


class CannotServeOn(EplbError):
    """The ranks that live cannot go on without the dead; the group must be started again."""

    code = "cannot_serve_on"


class UnknownDeployment(EplbError):
    """Nobody registered that deployment."""

    code = "unknown_deployment"


class UnknownRank(EplbError):
    """A message names a rank outside the group."""

    code = "unknown_rank"


class UnknownPlan(EplbError):
    """No plan with that id is kept."""

    code = "unknown_plan"


class UnknownEpoch(EplbError):
    """No placement is recorded under that epoch."""

    code = "unknown_epoch"


class UnknownPolicy(EplbError):
    """No policy has that name."""

    code = "unknown_policy"


class PlanRejected(EplbError):
    """A plan is sound but must not run."""

    code = "plan_rejected"


class PlanOvertaken(EplbError):
    """The placement a plan starts from is no longer served."""

    code = "plan_overtaken"


class InsufficientSamples(EplbError):
    """The load window cannot carry a plan."""

    code = "insufficient_samples"


class DeploymentFrozen(EplbError):
    """Plans are frozen for a time."""

    code = "frozen"


class DeploymentHalted(EplbError):
    """A halt stands until an operator resumes."""

    code = "halted"


class DeploymentBusy(EplbError):
    """Another plan is running."""

    code = "busy"


class NotReady(EplbError):
    """The deployment cannot be planned yet."""

    code = "not_ready"


class StaleMessage(EplbError):
    """A message carries an old incarnation, generation or epoch."""

    code = "stale_message"


class ConflictingMessage(EplbError):
    """Two different contents claim the same number."""

    code = "conflict"


class StoreConflict(EplbError):
    """Another controller wrote first; the writer must step down."""

    code = "store_conflict"


class StoreUnavailable(EplbError):
    """The store did not do what it was asked for.

    text    what it could not do, and why
    then    what that means where it was asked, if anything
    """

    code = "store_unavailable"

    def __init__(self, text: str, then: str = "") -> None:
        self.text = text
        super().__init__(text, then)

    def __str__(self) -> str:
        """Say both."""
        return "; ".join(part for part in self.args if part)


class NotLeader(EplbError):
    """This controller does not lead."""

    code = "not_leader"


class Elsewhere(EplbError):
    """Another controller has that deployment; `endpoint` is where."""

    code = "elsewhere"

    def __init__(self, text: str, *, endpoint: str = "") -> None:
        self.endpoint = endpoint
        super().__init__(text)


class PlannerFailed(EplbError):
    """A policy raised or returned something unsound."""

    code = "planner_failed"


class PlannerTimeout(EplbError):
    """A policy did not return before its deadline."""

    code = "planner_timeout"


class DeadlineExceeded(EplbError):
    """A wait ended before what was waited for."""

    code = "deadline_exceeded"


class InvalidRequest(EplbError):
    """An operator's request, or a word of a rank, makes no sense as sent."""

    code = "invalid_request"


class BindFailed(EplbError):
    """The server's address cannot be taken."""

    code = "bind_failed"


class Unauthenticated(EplbError):
    """A caller does not say who it is, or not so that it can be believed."""

    code = "unauthenticated"


class AccessDenied(EplbError):
    """A caller is known and may not do what it asks."""

    code = "access_denied"


class TooManyRequests(EplbError):
    """A caller asks more often than is allowed."""

    code = "too_many_requests"
