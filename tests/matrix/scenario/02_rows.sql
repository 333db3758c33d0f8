-- What follows "-->" is an event: kind, table, key, new, old, and unchanged unless it is empty.

BEGIN;
INSERT INTO items VALUES (1, 'one'), (2, NULL), (4, '');
UPDATE items SET note = 'uno' WHERE id = 1;
UPDATE items SET id = 3 WHERE id = 2;
DELETE FROM items WHERE id = 1;
COMMIT;
--> ["insert", "items", {"id": 1}, {"id": 1, "note": "one"}, null]
--> ["insert", "items", {"id": 2}, {"id": 2, "note": null}, null]
--> ["insert", "items", {"id": 4}, {"id": 4, "note": ""}, null]
--> ["update", "items", {"id": 1}, {"id": 1, "note": "uno"}, null]
--> ["update", "items", {"id": 2}, {"id": 3, "note": null}, {"id": 2}]
--> ["delete", "items", {"id": 1}, null, {"id": 1}]

-- A transaction that publishes nothing has no event, nor has a table that is not published.
BEGIN;
INSERT INTO unpublished VALUES (1);
COMMIT;
BEGIN;
INSERT INTO unpublished VALUES (2);
INSERT INTO items VALUES (5, E'a "b" \\ \n\t\x01 é 表 \U0001F600');
COMMIT;
--> ["insert", "items", {"id": 5}, {"id": 5, "note": "a \"b\" \\ \n\t\u0001 é 表 😀"}, null]

-- Replica identity: an index, the whole row, none.
BEGIN;
INSERT INTO pairs VALUES (1, 'x', 2);
UPDATE pairs SET x = 'y';
UPDATE pairs SET b = 3;
DELETE FROM pairs;
COMMIT;
--> ["insert", "pairs", {"a": 1, "b": 2}, {"a": 1, "x": "x", "b": 2}, null]
--> ["update", "pairs", {"a": 1, "b": 2}, {"a": 1, "x": "y", "b": 2}, null]
--> ["update", "pairs", {"a": 1, "b": 2}, {"a": 1, "x": "y", "b": 3}, {"a": 1, "b": 2}]
--> ["delete", "pairs", {"a": 1, "b": 3}, null, {"a": 1, "b": 3}]
BEGIN;
INSERT INTO wholes VALUES (1, 'one'), (2, NULL);
UPDATE wholes SET note = NULL WHERE id = 1;
UPDATE wholes SET id = 3 WHERE id = 2;
DELETE FROM wholes WHERE id = 1;
COMMIT;
--> ["insert", "wholes", null, {"id": 1, "note": "one"}, null]
--> ["insert", "wholes", null, {"id": 2, "note": null}, null]
--> ["update", "wholes", null, {"id": 1, "note": null}, {"id": 1, "note": "one"}]
--> ["update", "wholes", null, {"id": 3, "note": null}, {"id": 2, "note": null}]
--> ["delete", "wholes", null, null, {"id": 1, "note": null}]
INSERT INTO nothings VALUES (1, 'one');
--> ["insert", "nothings", null, {"id": 1, "note": "one"}, null]
INSERT INTO keyless VALUES (1, NULL);
--> ["insert", "keyless", null, {"id": 1, "note": null}, null]
INSERT INTO empties DEFAULT VALUES;
--> ["insert", "empties", null, {}, null]

-- The replica identity changes within a transaction.
BEGIN;
UPDATE items SET note = 'a' WHERE id = 4;
ALTER TABLE items REPLICA IDENTITY FULL;
UPDATE items SET note = 'b' WHERE id = 4;
ALTER TABLE items REPLICA IDENTITY DEFAULT;
UPDATE items SET note = 'c' WHERE id = 4;
COMMIT;
--> ["update", "items", {"id": 4}, {"id": 4, "note": "a"}, null]
--> ["update", "items", null, {"id": 4, "note": "b"}, {"id": 4, "note": "a"}]
--> ["update", "items", {"id": 4}, {"id": 4, "note": "c"}, null]

-- A publication of inserts alone.
BEGIN;
INSERT INTO only_inserts VALUES (1);
UPDATE only_inserts SET id = 2;
DELETE FROM only_inserts;
TRUNCATE only_inserts;
INSERT INTO only_inserts VALUES (3);
COMMIT;
--> ["insert", "only_inserts", {"id": 1}, {"id": 1}, null]
--> ["insert", "only_inserts", {"id": 3}, {"id": 3}, null]

-- Values that are stored apart and did not change; @large@ stands for one.
BEGIN;
UPDATE larges SET n = 1;
UPDATE larges SET id = 2;
UPDATE larges SET note = 'small';
UPDATE whole_larges SET n = 1;
UPDATE whole_larges SET id = 2, note = note || '';
DELETE FROM whole_larges;
COMMIT;
--> ["update", "larges", {"id": 1}, {"id": 1, "n": 1}, null, ["note"]]
--> ["update", "larges", {"id": 1}, {"id": 2, "n": 1}, {"id": 1}, ["note"]]
--> ["update", "larges", {"id": 2}, {"id": 2, "note": "small", "n": 1}, null]
--> ["update", "whole_larges", null, {"id": 1, "note": "@large@", "n": 1}, {"id": 1, "note": "@large@", "n": 0}, ["note"]]
--> ["update", "whole_larges", null, {"id": 2, "note": "@large@", "n": 1}, {"id": 1, "note": "@large@", "n": 1}]
--> ["delete", "whole_larges", null, null, {"id": 2, "note": "@large@", "n": 1}]
