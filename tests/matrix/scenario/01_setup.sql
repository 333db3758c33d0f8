-- What is there before the slots. A statement ends where a line does.
CREATE TABLE items (id int PRIMARY KEY, note text);
CREATE TABLE pairs (a int NOT NULL, x text, b int NOT NULL);
CREATE UNIQUE INDEX pairs_b_a ON pairs (b, a);
ALTER TABLE pairs REPLICA IDENTITY USING INDEX pairs_b_a;
CREATE TABLE wholes (id int PRIMARY KEY, note text);
ALTER TABLE wholes REPLICA IDENTITY FULL;
CREATE TABLE nothings (id int PRIMARY KEY, note text);
ALTER TABLE nothings REPLICA IDENTITY NOTHING;
CREATE TABLE keyless (id int, note text);
CREATE TABLE empties ();
CREATE TABLE only_inserts (id int PRIMARY KEY);
CREATE TABLE unpublished (id int PRIMARY KEY);

CREATE TABLE larges (id int PRIMARY KEY, note text, n int NOT NULL DEFAULT 0);
ALTER TABLE larges ALTER note SET STORAGE EXTERNAL;
INSERT INTO larges VALUES (1, (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) i));
CREATE TABLE whole_larges (id int PRIMARY KEY, note text, n int NOT NULL DEFAULT 0);
ALTER TABLE whole_larges ALTER note SET STORAGE EXTERNAL, REPLICA IDENTITY FULL;
INSERT INTO whole_larges VALUES (1, (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) i));

CREATE TABLE parents (id serial PRIMARY KEY);
CREATE TABLE children (id int PRIMARY KEY, parent int REFERENCES parents);

CREATE TABLE leaves (id int PRIMARY KEY, note text) PARTITION BY RANGE (id);
CREATE TABLE leaves_low PARTITION OF leaves FOR VALUES FROM (0) TO (100);
CREATE TABLE leaves_high PARTITION OF leaves FOR VALUES FROM (100) TO (200);
CREATE TABLE roots (id int PRIMARY KEY, note text) PARTITION BY RANGE (id);
CREATE TABLE roots_low PARTITION OF roots FOR VALUES FROM (0) TO (100);
CREATE TABLE roots_high (note text, dropped int, id int PRIMARY KEY);
ALTER TABLE roots_high DROP dropped;
ALTER TABLE roots ATTACH PARTITION roots_high FOR VALUES FROM (100) TO (200);

CREATE SCHEMA "Größe ""x"" 1";
CREATE TYPE "Größe ""x"" 1"."Läune" AS ENUM ('froh', 'so, "la la"', 'Ärger');
CREATE TABLE "Größe ""x"" 1"."Tä ble, 'q' 表" ("Select "" from" int, "ключ 1" text, "UPPER" "Größe ""x"" 1"."Läune", PRIMARY KEY ("ключ 1", "Select "" from"));

CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN short_list AS text[];
CREATE TYPE inner_pair AS (n int, t text);
CREATE TYPE outer_pair AS (p inner_pair, m mood, l int[]);
CREATE TYPE span AS RANGE (subtype = float8);
CREATE TABLE kinds (id int PRIMARY KEY, e mood, es mood[], d positive, dl short_list, c outer_pair, cs inner_pair[], i int[], t text[], r int4range, s span, rs numrange[]);
CREATE TABLE plains (id bigint PRIMARY KEY, b bool, f float8, n numeric, x bytea, j json, jb jsonb, u uuid, ts timestamptz, d date, iv interval, net inet, bits varbit, p point, v tsvector);

CREATE TABLE evolving (id int PRIMARY KEY, note text);
CREATE TABLE big (id int PRIMARY KEY, note text);
CREATE TABLE big_too (id int PRIMARY KEY, note text);
CREATE TABLE computed (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED);

CREATE PUBLICATION "Pub ""p"" é" FOR TABLE items, pairs, wholes, nothings, keyless, empties, larges, whole_larges, parents, children, "Größe ""x"" 1"."Tä ble, 'q' 表", kinds, plains;
CREATE PUBLICATION "SELECT" FOR TABLE evolving, big, big_too, computed;
CREATE PUBLICATION "some" WITH (publish = 'insert');
ALTER PUBLICATION "some" ADD TABLE only_inserts;
CREATE PUBLICATION leaves FOR TABLE leaves;
CREATE PUBLICATION roots FOR TABLE roots WITH (publish_via_partition_root = true);

-- since 14
CREATE TABLE spans (id int PRIMARY KEY, m int4multirange);
ALTER PUBLICATION "SELECT" ADD TABLE spans;

-- since 15
CREATE TABLE filtered (id int PRIMARY KEY, quantity int NOT NULL, note text);
ALTER TABLE filtered REPLICA IDENTITY FULL;
CREATE TABLE filtered_keys (id int PRIMARY KEY, note text, n int);
ALTER TABLE filtered_keys ALTER note SET STORAGE EXTERNAL;
INSERT INTO filtered_keys VALUES (5, (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) i), 0);
CREATE TABLE listed (id int PRIMARY KEY, hidden text, shown text);
CREATE PUBLICATION filters FOR TABLE filtered WHERE (quantity > 10), filtered_keys WHERE (id > 10), listed (id, shown);
CREATE SCHEMA whole_schema;
CREATE TABLE whole_schema.any_table (id int PRIMARY KEY);
CREATE PUBLICATION schemas FOR TABLES IN SCHEMA whole_schema;

-- since 18
CREATE TABLE computed_too (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED);
CREATE PUBLICATION generated FOR TABLE computed_too WITH (publish_generated_columns = stored);

-- since 19
CREATE TABLE numbered (id oid8 PRIMARY KEY, others oid8[]);
ALTER PUBLICATION "SELECT" ADD TABLE numbered;
