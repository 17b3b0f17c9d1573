"""Whether a plan that is sound should run now: gates, each with its reason, and the verdict.

A gate looks at a plan and its circumstances and changes neither. Rules of soundness are
not gates: they bind everybody and stand in domain.rules.
"""
