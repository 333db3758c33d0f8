"""``aiorepl check`` for a source: everything that would keep a pipeline from starting or from running on."""
