-- Savepoints: what was rolled back is not there and does not count.
BEGIN;
INSERT INTO items VALUES (10, 'before');
SAVEPOINT a;
INSERT INTO items VALUES (11, 'never');
SAVEPOINT b;
INSERT INTO items VALUES (12, 'never');
RELEASE b;
ROLLBACK TO a;
INSERT INTO items VALUES (13, 'after');
SAVEPOINT c;
UPDATE items SET note = 'released' WHERE id = 10;
RELEASE c;
SAVEPOINT d;
DELETE FROM items WHERE id = 13;
ROLLBACK TO d;
COMMIT;
--> ["insert", "items", {"id": 10}, {"id": 10, "note": "before"}, null]
--> ["insert", "items", {"id": 13}, {"id": 13, "note": "after"}, null]
--> ["update", "items", {"id": 10}, {"id": 10, "note": "released"}, null]
BEGIN;
INSERT INTO items VALUES (14, 'never');
ROLLBACK;

-- Two at a time come in the order of their commits.
-- as b
BEGIN;
INSERT INTO items VALUES (20, 'began first');
-- as a
BEGIN;
INSERT INTO items VALUES (21, 'commits first');
COMMIT;
-- as b
INSERT INTO items VALUES (22, 'commits last');
COMMIT;
--> ["insert", "items", {"id": 21}, {"id": 21, "note": "commits first"}, null]
--> ["insert", "items", {"id": 20}, {"id": 20, "note": "began first"}, null]
--> ["insert", "items", {"id": 22}, {"id": 22, "note": "commits last"}, null]
-- as a

-- A transaction that came from elsewhere.
-- origin matrix origin é
SELECT pg_replication_origin_session_setup('matrix origin é');
BEGIN;
INSERT INTO items VALUES (30, 'from elsewhere');
INSERT INTO items VALUES (31, 'as well');
COMMIT;
--> ["insert", "items", {"id": 30}, {"id": 30, "note": "from elsewhere"}, null]
--> ["insert", "items", {"id": 31}, {"id": 31, "note": "as well"}, null]
SELECT pg_replication_origin_session_reset();
-- origin
INSERT INTO items VALUES (32, 'from here');
--> ["insert", "items", {"id": 32}, {"id": 32, "note": "from here"}, null]

-- since 14
-- Messages: one of a transaction counts in it, and goes with its savepoint; another stands for itself.
BEGIN;
SELECT pg_logical_emit_message(true, 'in é', '\x00ff'::bytea);
INSERT INTO items VALUES (40, 'x');
SAVEPOINT a;
INSERT INTO items VALUES (41, 'never');
SELECT pg_logical_emit_message(true, 'never', '');
ROLLBACK TO a;
SELECT pg_logical_emit_message(true, '', '');
COMMIT;
--> ["message", "in é", "AP8=", true]
--> ["insert", "items", {"id": 40}, {"id": 40, "note": "x"}, null]
--> ["message", "", "", true]
BEGIN;
SELECT pg_logical_emit_message(true, 'never', 'x');
SELECT pg_logical_emit_message(false, 'alone', 'é');
ROLLBACK;
--> ["message", "alone", "w6k=", false]
BEGIN;
INSERT INTO items VALUES (42, 'x');
SELECT pg_logical_emit_message(false, 'first', '');
COMMIT;
--> ["message", "first", "", false]
--> ["insert", "items", {"id": 42}, {"id": 42, "note": "x"}, null]
