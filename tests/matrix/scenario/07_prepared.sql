-- In two phases: events stand where COMMIT PREPARED is.
BEGIN;
INSERT INTO items VALUES (60, 'prepared');
SAVEPOINT a;
INSERT INTO items VALUES (61, 'never');
ROLLBACK TO a;
UPDATE items SET note = 'twice' WHERE id = 60;
PREPARE TRANSACTION 'small "é"';
INSERT INTO items VALUES (62, 'between');
--> ["insert", "items", {"id": 62}, {"id": 62, "note": "between"}, null]
COMMIT PREPARED 'small "é"';
--> ["insert", "items", {"id": 60}, {"id": 60, "note": "prepared"}, null]
--> ["update", "items", {"id": 60}, {"id": 60, "note": "twice"}, null]

BEGIN;
INSERT INTO items VALUES (63, 'never');
PREPARE TRANSACTION 'rolled back';
ROLLBACK PREPARED 'rolled back';

-- One whose transaction publishes nothing.
BEGIN;
INSERT INTO unpublished VALUES (63);
PREPARE TRANSACTION 'empty';
COMMIT PREPARED 'empty';

-- Large ones, so that they are streamed before they are prepared.
BEGIN;
INSERT INTO big_too SELECT i, repeat('x', 100) FROM generate_series(6001, 6700) i;
SAVEPOINT a;
INSERT INTO big_too SELECT i, repeat('never', 20) FROM generate_series(7001, 7700) i;
ROLLBACK TO a;
DELETE FROM big_too WHERE id = 6001;
PREPARE TRANSACTION 'large';
BEGIN;
INSERT INTO big_too SELECT i, repeat('x', 100) FROM generate_series(8001, 8700) i;
PREPARE TRANSACTION 'large, rolled back';
-- as b
BEGIN;
INSERT INTO items VALUES (64, 'decided elsewhere');
PREPARE TRANSACTION 'last prepared';
-- as a
COMMIT PREPARED 'last prepared';
--> ["insert", "items", {"id": 64}, {"id": 64, "note": "decided elsewhere"}, null]
ROLLBACK PREPARED 'large, rolled back';
-- as b
COMMIT PREPARED 'large';
-->6001-6700 ["insert", "big_too", {"id": #}, {"id": #, "note": "@x100@"}, null]
--> ["delete", "big_too", {"id": 6001}, null, {"id": 6001}]
-- as a

-- A transaction from elsewhere, prepared.
-- origin matrix origin é
SELECT pg_replication_origin_session_setup('matrix origin é');
BEGIN;
INSERT INTO items VALUES (65, 'from elsewhere');
PREPARE TRANSACTION 'origin';
COMMIT PREPARED 'origin';
--> ["insert", "items", {"id": 65}, {"id": 65, "note": "from elsewhere"}, null]
SELECT pg_replication_origin_session_reset();
-- origin
