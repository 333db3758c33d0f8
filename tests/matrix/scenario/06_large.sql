-- Over logical_decoding_work_mem, so in pieces under streaming. "-->3-5" stands for three events, # for 3, 4 and 5.
BEGIN;
INSERT INTO big SELECT i, repeat('x', 100) FROM generate_series(1, 700) i;
SAVEPOINT a;
INSERT INTO big SELECT i, repeat('never', 20) FROM generate_series(2001, 2700) i;
ROLLBACK TO a;
SAVEPOINT b;
UPDATE big SET note = 'changed' WHERE id = 1;
RELEASE b;
-- as b
INSERT INTO items VALUES (50, 'in the midst');
--> ["insert", "items", {"id": 50}, {"id": 50, "note": "in the midst"}, null]
-- as a
ALTER TABLE big ADD added text DEFAULT 'd';
UPDATE big SET id = -id WHERE id = 2;
INSERT INTO big SELECT i, repeat('y', 100), NULL FROM generate_series(701, 1200) i;
SAVEPOINT c;
ALTER TABLE big DROP note;
INSERT INTO big SELECT i, repeat('never', 20) FROM generate_series(3001, 3500) i;
ROLLBACK TO c;
DELETE FROM big WHERE id = 3;
TRUNCATE wholes;
INSERT INTO big_too VALUES (1, 'last');
COMMIT;
-->1-700 ["insert", "big", {"id": #}, {"id": #, "note": "@x100@"}, null]
--> ["update", "big", {"id": 1}, {"id": 1, "note": "changed"}, null]
--> ["update", "big", {"id": 2}, {"id": -2, "note": "@x100@", "added": "d"}, {"id": 2}]
-->701-1200 ["insert", "big", {"id": #}, {"id": #, "note": "@y100@", "added": null}, null]
--> ["delete", "big", {"id": 3}, null, {"id": 3}]
--> ["truncate", ["wholes"], false, false]
--> ["insert", "big_too", {"id": 1}, {"id": 1, "note": "last"}, null]

-- Two large ones at once, and one that is rolled back.
BEGIN;
INSERT INTO big_too SELECT i, repeat('x', 100) FROM generate_series(1001, 1600) i;
-- as b
BEGIN;
INSERT INTO big_too SELECT i, repeat('x', 100) FROM generate_series(2001, 2600) i;
-- as c
BEGIN;
INSERT INTO big_too SELECT i, repeat('x', 100) FROM generate_series(3001, 3600) i;
ROLLBACK;
-- as b
INSERT INTO big_too SELECT i, repeat('x', 100) FROM generate_series(2601, 3200) i;
-- as a
INSERT INTO big_too SELECT i, repeat('x', 100) FROM generate_series(1601, 1900) i;
-- as b
COMMIT;
-->2001-3200 ["insert", "big_too", {"id": #}, {"id": #, "note": "@x100@"}, null]
-- as a
COMMIT;
-->1001-1900 ["insert", "big_too", {"id": #}, {"id": #, "note": "@x100@"}, null]

-- since 14
BEGIN;
SELECT pg_logical_emit_message(true, 'large', convert_to(repeat('x', 100), 'UTF8')) FROM generate_series(1, 3);
INSERT INTO big_too SELECT i, repeat('x', 100) FROM generate_series(5001, 5600) i;
SELECT pg_logical_emit_message(false, 'in the midst', '');
--> ["message", "in the midst", "", false]
INSERT INTO big_too VALUES (5601, 'last');
COMMIT;
-->1-3 ["message", "large", "@x100base64@", true]
-->5001-5600 ["insert", "big_too", {"id": #}, {"id": #, "note": "@x100@"}, null]
--> ["insert", "big_too", {"id": 5601}, {"id": 5601, "note": "last"}, null]
