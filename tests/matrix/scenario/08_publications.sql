-- since 15
-- Row filters: an update can come into view, leave it, or stay in or out of it.
BEGIN;
INSERT INTO filtered VALUES (1, 5, 'out'), (2, 50, 'in');
UPDATE filtered SET note = 'still out' WHERE id = 1;
UPDATE filtered SET quantity = 20 WHERE id = 1;
UPDATE filtered SET note = 'still in' WHERE id = 1;
UPDATE filtered SET quantity = 3 WHERE id = 1;
DELETE FROM filtered WHERE id = 1;
DELETE FROM filtered WHERE id = 2;
COMMIT;
--> ["insert", "filtered", null, {"id": 2, "quantity": 50, "note": "in"}, null]
--> ["insert", "filtered", null, {"id": 1, "quantity": 20, "note": "still out"}, null]
--> ["update", "filtered", null, {"id": 1, "quantity": 20, "note": "still in"}, {"id": 1, "quantity": 20, "note": "still out"}]
--> ["delete", "filtered", null, null, {"id": 1, "quantity": 20, "note": "still in"}]
--> ["delete", "filtered", null, null, {"id": 2, "quantity": 50, "note": "in"}]

-- An insert that was an update does not have what did not change and is stored apart.
BEGIN;
UPDATE filtered_keys SET n = 1;
UPDATE filtered_keys SET id = 20;
UPDATE filtered_keys SET n = 2;
UPDATE filtered_keys SET id = 5;
COMMIT;
--> ["insert", "filtered_keys", {"id": 20}, {"id": 20, "n": 1}, null, ["note"]]
--> ["update", "filtered_keys", {"id": 20}, {"id": 20, "n": 2}, null, ["note"]]
--> ["delete", "filtered_keys", {"id": 20}, null, {"id": 20}]

-- Column lists.
BEGIN;
INSERT INTO listed VALUES (1, 'h', 's');
UPDATE listed SET hidden = 'i';
UPDATE listed SET id = 2, shown = 't';
DELETE FROM listed;
COMMIT;
--> ["insert", "listed", {"id": 1}, {"id": 1, "shown": "s"}, null]
--> ["update", "listed", {"id": 1}, {"id": 1, "shown": "s"}, null]
--> ["update", "listed", {"id": 1}, {"id": 2, "shown": "t"}, {"id": 1}]
--> ["delete", "listed", {"id": 2}, null, {"id": 2}]

-- All tables of a schema, also one that is new.
INSERT INTO whole_schema.any_table VALUES (1);
--> ["insert", ["whole_schema", "any_table"], {"id": 1}, {"id": 1}, null]
CREATE TABLE whole_schema.another (id int PRIMARY KEY);
INSERT INTO whole_schema.another VALUES (2);
--> ["insert", ["whole_schema", "another"], {"id": 2}, {"id": 2}, null]

-- all
-- A table that is published from here on.
ALTER PUBLICATION "some" ADD TABLE unpublished;
INSERT INTO unpublished VALUES (70);
--> ["insert", "unpublished", {"id": 70}, {"id": 70}, null]
ALTER PUBLICATION "some" DROP TABLE unpublished;
INSERT INTO unpublished VALUES (71);

-- The last.
INSERT INTO items VALUES (99, 'last');
--> ["insert", "items", {"id": 99}, {"id": 99, "note": "last"}, null]
