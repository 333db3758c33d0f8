-- Types of our own, and some of the built-in ones, which have tests of their own elsewhere.
BEGIN;
INSERT INTO kinds VALUES (1, 'happy', '{sad,NULL,happy}', 5, '{a,"b c",NULL}', ROW(ROW(1, 'x, "y"'), 'sad', '{1,NULL}'), ARRAY[ROW(1, 'a')::inner_pair, NULL, ROW(NULL, '')::inner_pair], '{{1,2},{3,NULL}}', '{NULL,"NULL","a,b","\\"}', '[1,5]', '(0.5,)', '{"[1.50,2)",empty,NULL}');
INSERT INTO kinds (id) VALUES (2);
UPDATE kinds SET e = 'sad', c = ROW(NULL, NULL, '{}'), r = 'empty', i = '[2:3]={7,8}' WHERE id = 1;
COMMIT;
--> ["insert", "kinds", {"id": 1}, {"id": 1, "e": "happy", "es": ["sad", null, "happy"], "d": 5, "dl": ["a", "b c", null], "c": "(\"(1,\"\"x, \"\"\"\"y\"\"\"\"\"\")\",sad,\"{1,NULL}\")", "cs": ["(1,a)", null, "(,\"\")"], "i": [[1, 2], [3, null]], "t": [null, "NULL", "a,b", "\\"], "r": "[1,6)", "s": "(0.5,)", "rs": ["[1.50,2)", "empty", null]}, null]
--> ["insert", "kinds", {"id": 2}, {"id": 2, "e": null, "es": null, "d": null, "dl": null, "c": null, "cs": null, "i": null, "t": null, "r": null, "s": null, "rs": null}, null]
--> ["update", "kinds", {"id": 1}, {"id": 1, "e": "sad", "es": ["sad", null, "happy"], "d": 5, "dl": ["a", "b c", null], "c": "(,,{})", "cs": ["(1,a)", null, "(,\"\")"], "i": [7, 8], "t": [null, "NULL", "a,b", "\\"], "r": "empty", "s": "(0.5,)", "rs": ["[1.50,2)", "empty", null]}, null]
BEGIN;
INSERT INTO plains VALUES (9223372036854775807, true, 1.5, '-12345678901234567890.1200', '\x00ff', '{"b": 1.10, "a": [null]}', '{"b": 1.10, "a": [null]}', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '2026-01-02 03:04:05.678901+02', '0044-03-15 BC', '1 year -2 days 03:04:05.5', '192.168.1.0/24', B'10110', '(1.5,-2)', 'a:1A b:2');
INSERT INTO plains VALUES (-1, false, 'NaN', 'NaN', '', 'null', '"x"', NULL, 'infinity', '-infinity', '0', '::1', B'', NULL, '');
COMMIT;
--> ["insert", "plains", {"id": 9223372036854775807}, {"id": 9223372036854775807, "b": true, "f": 1.5, "n": "-12345678901234567890.1200", "x": "\\x00ff", "j": {"b": 1.10, "a": [null]}, "jb": {"a": [null], "b": 1.10}, "u": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "ts": "2026-01-02 01:04:05.678901+00", "d": "0044-03-15 BC", "iv": "1 year -2 days +03:04:05.5", "net": "192.168.1.0/24", "bits": "10110", "p": "(1.5,-2)", "v": "'a':1A 'b':2"}, null]
--> ["insert", "plains", {"id": -1}, {"id": -1, "b": false, "f": "NaN", "n": "NaN", "x": "\\x", "j": null, "jb": "x", "u": null, "ts": "infinity", "d": "-infinity", "iv": "00:00:00", "net": "::1", "bits": "", "p": null, "v": ""}, null]

-- since 14
INSERT INTO spans VALUES (1, '{[1,3),[5,7]}');
--> ["insert", "spans", {"id": 1}, {"id": 1, "m": "{[1,3),[5,8)}"}, null]

-- since 19
INSERT INTO numbered VALUES ('18446744073709551615', '{0,NULL,4294967296}');
--> ["insert", "numbered", {"id": "18446744073709551615"}, {"id": "18446744073709551615", "others": ["0", null, "4294967296"]}, null]
