"""Generated from proto/eplb; see proto/gen/MANIFEST."""
