-- Truncate: several tables, those that follow, and the identity.
BEGIN;
INSERT INTO parents DEFAULT VALUES;
INSERT INTO children VALUES (7, 1);
TRUNCATE wholes, unpublished, pairs;
TRUNCATE children;
TRUNCATE parents RESTART IDENTITY CASCADE;
INSERT INTO parents DEFAULT VALUES;
COMMIT;
--> ["insert", "parents", {"id": 1}, {"id": 1}, null]
--> ["insert", "children", {"id": 7}, {"id": 7, "parent": 1}, null]
--> ["truncate", ["wholes", "pairs"], false, false]
--> ["truncate", ["children"], false, false]
--> ["truncate", ["parents", "children"], true, true]
--> ["insert", "parents", {"id": 1}, {"id": 1}, null]
TRUNCATE parents, children RESTART IDENTITY;
--> ["truncate", ["parents", "children"], false, true]

-- Partitions, by themselves and as their root, whose columns are in another order.
BEGIN;
INSERT INTO leaves VALUES (1, 'one'), (101, 'hundred');
UPDATE leaves SET note = 'uno' WHERE id = 1;
UPDATE leaves SET id = 102 WHERE id = 1;
TRUNCATE leaves;
COMMIT;
--> ["insert", "leaves_low", {"id": 1}, {"id": 1, "note": "one"}, null]
--> ["insert", "leaves_high", {"id": 101}, {"id": 101, "note": "hundred"}, null]
--> ["update", "leaves_low", {"id": 1}, {"id": 1, "note": "uno"}, null]
--> ["delete", "leaves_low", {"id": 1}, null, {"id": 1}]
--> ["insert", "leaves_high", {"id": 102}, {"id": 102, "note": "uno"}, null]
--> ["truncate", ["leaves_low", "leaves_high"], false, false]
BEGIN;
INSERT INTO roots VALUES (1, 'one'), (101, 'hundred');
UPDATE roots SET note = 'uno' WHERE id = 1;
UPDATE roots SET id = 102 WHERE id = 1;
UPDATE roots SET id = 103 WHERE id = 102;
TRUNCATE roots;
COMMIT;
--> ["insert", "roots", {"id": 1}, {"id": 1, "note": "one"}, null]
--> ["insert", "roots", {"id": 101}, {"id": 101, "note": "hundred"}, null]
--> ["update", "roots", {"id": 1}, {"id": 1, "note": "uno"}, null]
--> ["delete", "roots", {"id": 1}, null, {"id": 1}]
--> ["insert", "roots", {"id": 102}, {"id": 102, "note": "uno"}, null]
--> ["update", "roots", {"id": 102}, {"id": 103, "note": "uno"}, {"id": 102}]
--> ["truncate", ["roots"], false, false]

-- Names of any spelling.
BEGIN;
INSERT INTO "Größe ""x"" 1"."Tä ble, 'q' 表" VALUES (1, 'a', 'so, "la la"');
UPDATE "Größe ""x"" 1"."Tä ble, 'q' 表" SET "ключ 1" = 'b', "UPPER" = 'Ärger';
TRUNCATE "Größe ""x"" 1"."Tä ble, 'q' 表";
COMMIT;
--> ["insert", ["Größe \"x\" 1", "Tä ble, 'q' 表"], {"Select \" from": 1, "ключ 1": "a"}, {"Select \" from": 1, "ключ 1": "a", "UPPER": "so, \"la la\""}, null]
--> ["update", ["Größe \"x\" 1", "Tä ble, 'q' 表"], {"Select \" from": 1, "ключ 1": "a"}, {"Select \" from": 1, "ключ 1": "b", "UPPER": "Ärger"}, {"Select \" from": 1, "ключ 1": "a"}]
--> ["truncate", [["Größe \"x\" 1", "Tä ble, 'q' 表"]], false, false]

-- DDL between transactions and inside of one: each row is read by the table as it was.
INSERT INTO evolving VALUES (1, 'one');
--> ["insert", "evolving", {"id": 1}, {"id": 1, "note": "one"}, null]
ALTER TABLE evolving ADD added int DEFAULT 5;
INSERT INTO evolving VALUES (2, 'two');
--> ["insert", "evolving", {"id": 2}, {"id": 2, "note": "two", "added": 5}, null]
BEGIN;
INSERT INTO evolving VALUES (3, 'three');
ALTER TABLE evolving RENAME note TO label;
INSERT INTO evolving VALUES (4, 'four');
ALTER TABLE evolving DROP added;
UPDATE evolving SET label = 'uno' WHERE id = 1;
SAVEPOINT s;
ALTER TABLE evolving ADD never int;
INSERT INTO evolving VALUES (5, 'never', 1);
ROLLBACK TO s;
ALTER TABLE evolving ALTER id TYPE bigint;
INSERT INTO evolving VALUES (6000000000, 'six');
COMMIT;
--> ["insert", "evolving", {"id": 3}, {"id": 3, "note": "three", "added": 5}, null]
--> ["insert", "evolving", {"id": 4}, {"id": 4, "label": "four", "added": 5}, null]
--> ["update", "evolving", {"id": 1}, {"id": 1, "label": "uno"}, null]
--> ["insert", "evolving", {"id": 6000000000}, {"id": 6000000000, "label": "six"}, null]
ALTER TABLE evolving RENAME TO evolved;
DELETE FROM evolved WHERE id = 6000000000;
--> ["delete", "evolved", {"id": 6000000000}, null, {"id": 6000000000}]

-- Generated columns are left out unless the publication has them, which it can since 18.
BEGIN;
INSERT INTO computed (id, n) VALUES (1, 2);
UPDATE computed SET n = 3;
COMMIT;
--> ["insert", "computed", {"id": 1}, {"id": 1, "n": 2}, null]
--> ["update", "computed", {"id": 1}, {"id": 1, "n": 3}, null]

-- since 18
BEGIN;
INSERT INTO computed_too (id, n) VALUES (1, 2);
UPDATE computed_too SET n = 3;
COMMIT;
--> ["insert", "computed_too", {"id": 1}, {"id": 1, "n": 2, "twice": 4}, null]
--> ["update", "computed_too", {"id": 1}, {"id": 1, "n": 3, "twice": 6}, null]
