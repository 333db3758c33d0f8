"""Messages to whole transactions, in commit order, without what aborted. Pure, its spool file aside."""
