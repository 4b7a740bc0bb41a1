BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0011');
CREATE TABLE audit (
	number BIGINT NOT NULL, 
	at_us BIGINT NOT NULL, 
	body VARCHAR, 
	content_hash BLOB NOT NULL, 
	hash BLOB NOT NULL, 
	PRIMARY KEY (number)
);
CREATE TABLE events (
	id VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	at_us BIGINT NOT NULL, 
	PRIMARY KEY (id, name)
);
CREATE TABLE fires (
	entry_id INTEGER NOT NULL, 
	task_id VARCHAR NOT NULL, 
	fire_id VARCHAR, 
	request_id VARCHAR, 
	kind VARCHAR NOT NULL, 
	outcome VARCHAR NOT NULL, 
	is_open BOOLEAN NOT NULL, 
	reason TEXT NOT NULL, 
	nominal_us BIGINT NOT NULL, 
	due_us BIGINT NOT NULL, 
	covers BIGINT NOT NULL, 
	first_us BIGINT NOT NULL, 
	last_us BIGINT NOT NULL, 
	attempt INTEGER NOT NULL, 
	policy VARCHAR NOT NULL, 
	caught_up BOOLEAN NOT NULL, 
	released BOOLEAN NOT NULL, 
	send_by_us BIGINT, 
	ready_us BIGINT, 
	refusals INTEGER NOT NULL, 
	fired_us BIGINT, 
	accepted_us BIGINT, 
	started_us BIGINT, 
	ended_us BIGINT, 
	turn_id VARCHAR NOT NULL, retries INTEGER DEFAULT '0' NOT NULL, spent_us BIGINT DEFAULT '0' NOT NULL, tokens BIGINT DEFAULT '0' NOT NULL, 
	PRIMARY KEY (entry_id)
);
INSERT INTO "fires" VALUES(1,'task-2265b1f5','task-2265b1f5@20260302T090100Z',NULL,'scheduled','succeeded',0,'',1772442060000000,1772442060000000,1,1772442060000000,1772442060000000,1,'run-once',0,0,1772442070000000,NULL,0,1772442061000000,1772442061000000,1767225600000000,1767225600000000,'turn-1',0,0,0);
INSERT INTO "fires" VALUES(2,'task-2265b1f5','task-2265b1f5@20260302T090700Z',NULL,'scheduled','skipped',0,'superseded',1772442420000000,1772442420000000,6,1772442120000000,1772442420000000,1,'run-once',1,0,1772442430000000,NULL,0,NULL,NULL,NULL,1772442461000000,'',0,0,0);
INSERT INTO "fires" VALUES(3,'task-d8f16adf','task-d8f16adf@20260302T090500Z',NULL,'scheduled','pending',1,'',1772442300000000,1772442300000000,1,1772442300000000,1772442300000000,1,'run-once',1,0,1772442310000000,1772442461000000,0,NULL,NULL,NULL,NULL,'',0,0,0);
CREATE TABLE follow (
	peer VARCHAR NOT NULL, 
	incarnation VARCHAR NOT NULL, 
	sequence BIGINT NOT NULL, 
	PRIMARY KEY (peer)
);
INSERT INTO "follow" VALUES('agent-runtime','one',2);
CREATE TABLE nodes (
	node_id VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	role VARCHAR NOT NULL, 
	host VARCHAR NOT NULL, 
	version VARCHAR NOT NULL, 
	started_us BIGINT NOT NULL, 
	beat_us BIGINT NOT NULL, 
	offset_us BIGINT NOT NULL, 
	draining BOOLEAN DEFAULT 0 NOT NULL, owner VARCHAR DEFAULT '' NOT NULL, facts_json VARCHAR DEFAULT '{}' NOT NULL, alerted_us BIGINT DEFAULT '0' NOT NULL, 
	PRIMARY KEY (node_id)
);
CREATE TABLE outages (
	number INTEGER NOT NULL, 
	from_us BIGINT NOT NULL, 
	to_us BIGINT NOT NULL, 
	lasts BOOLEAN NOT NULL, 
	PRIMARY KEY (number)
);
INSERT INTO "outages" VALUES(1,1788249600000000,1788253200000000,0);
CREATE TABLE outbox (
	entry_id INTEGER NOT NULL, 
	request BLOB NOT NULL, 
	PRIMARY KEY (entry_id)
);
INSERT INTO "outbox" VALUES(3,X'120D7461736B2D64386631366164661A04736F6F6E220D7461736B2D64386631366164662A0767656E6572616C32066167656E74303A046C6F6F70420170920103555443');
CREATE TABLE revisions (
	task_id VARCHAR NOT NULL, 
	revision INTEGER NOT NULL, 
	valid_from_us BIGINT NOT NULL, 
	definition TEXT NOT NULL, 
	PRIMARY KEY (task_id, revision)
);
INSERT INTO "revisions" VALUES('task-2265b1f5',1,1772442000000000,'{"agent":"agent0","budget":{},"catch_up":"run-once","catch_up_window":null,"category":"loop","channel":"general","end_at":null,"exclude":[],"expires_at":null,"grace":10000000,"jitter":0,"max_catch_up":1000,"max_fires":null,"name":"digest","overlap":"coalesce","pause_after_failures":null,"payload_json":"","prompt":"p","read_only":false,"retries":0,"schedule":{"anchor_at":1772442000000000,"declared_in":"","kind":"every","text":"1m"},"start_at":null,"tags":{},"thread_id":"","timezone":"UTC"}');
INSERT INTO "revisions" VALUES('task-91b7584a',1,1772442000000000,'{"agent":"agent0","budget":{},"catch_up":"skip","catch_up_window":null,"category":"loop","channel":"general","end_at":null,"exclude":[],"expires_at":null,"grace":10000000,"jitter":0,"max_catch_up":1000,"max_fires":5,"name":"daily","overlap":"coalesce","pause_after_failures":null,"payload_json":"{\"x\":1}","prompt":"p","read_only":false,"retries":0,"schedule":{"anchor_at":null,"declared_in":"","kind":"cron","text":"0 9 * * 1-5"},"start_at":null,"tags":{"team":"x"},"thread_id":"","timezone":"Europe/Riga"}');
INSERT INTO "revisions" VALUES('task-d8f16adf',1,1772442000000000,'{"agent":"agent0","budget":{},"catch_up":"run-once","catch_up_window":null,"category":"loop","channel":"general","end_at":null,"exclude":[],"expires_at":null,"grace":10000000,"jitter":0,"max_catch_up":1000,"max_fires":null,"name":"soon","overlap":"coalesce","pause_after_failures":null,"payload_json":"","prompt":"p","read_only":false,"retries":0,"schedule":{"anchor_at":null,"declared_in":"","kind":"at","text":"2026-03-02T09:05:00Z"},"start_at":null,"tags":{},"thread_id":"","timezone":"UTC"}');
INSERT INTO "revisions" VALUES('task-2265b1f5',2,1772442461000000,'{"agent":"agent0","budget":{},"catch_up":"run-once","catch_up_window":null,"category":"loop","channel":"general","end_at":null,"exclude":[],"expires_at":null,"grace":10000000,"jitter":0,"max_catch_up":1000,"max_fires":null,"name":"digest","overlap":"coalesce","pause_after_failures":null,"payload_json":"","prompt":"q","read_only":false,"retries":0,"schedule":{"anchor_at":1772442000000000,"declared_in":"","kind":"every","text":"2m"},"start_at":null,"tags":{},"thread_id":"","timezone":"UTC"}');
CREATE TABLE slots (
	name VARCHAR NOT NULL, 
	holder VARCHAR NOT NULL, 
	until_us BIGINT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "slots" VALUES('catch-up','',0);
CREATE TABLE stoppages (
	number INTEGER NOT NULL, 
	cause VARCHAR NOT NULL, 
	task_id VARCHAR NOT NULL, 
	why VARCHAR NOT NULL, 
	from_us BIGINT NOT NULL, 
	to_us BIGINT NOT NULL, 
	lasts BOOLEAN NOT NULL, 
	PRIMARY KEY (number)
);
CREATE TABLE tasks (
	id VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	reason TEXT NOT NULL, 
	category VARCHAR NOT NULL, 
	channel VARCHAR NOT NULL, 
	definition TEXT NOT NULL, 
	revision INTEGER NOT NULL, 
	created_us BIGINT NOT NULL, 
	cursor_us BIGINT NOT NULL, 
	wake_us BIGINT, 
	rewound_us BIGINT, 
	accepted INTEGER NOT NULL, 
	fires INTEGER NOT NULL, 
	missed BIGINT NOT NULL, 
	tail_entry BIGINT, failures INTEGER DEFAULT '0' NOT NULL, usage TEXT, pacing TEXT, paced_thread VARCHAR, made_by VARCHAR, ephemeral BOOLEAN DEFAULT '0' NOT NULL, listens VARCHAR, unpriced TEXT, 
	PRIMARY KEY (id)
);
INSERT INTO "tasks" VALUES('task-2265b1f5','digest','active','','loop','general','{"agent":"agent0","budget":{},"catch_up":"run-once","catch_up_window":null,"category":"loop","channel":"general","end_at":null,"exclude":[],"expires_at":null,"grace":10000000,"jitter":0,"max_catch_up":1000,"max_fires":null,"name":"digest","overlap":"coalesce","pause_after_failures":null,"payload_json":"","prompt":"q","read_only":false,"retries":0,"schedule":{"anchor_at":1772442000000000,"declared_in":"","kind":"every","text":"2m"},"start_at":null,"tags":{},"thread_id":"","timezone":"UTC"}',2,1772442000000000,1772442461000000,1772442480000000,NULL,1,1,5,NULL,0,NULL,NULL,NULL,NULL,0,NULL,NULL);
INSERT INTO "tasks" VALUES('task-91b7584a','daily','paused','away','loop','general','{"agent":"agent0","budget":{},"catch_up":"skip","catch_up_window":null,"category":"loop","channel":"general","end_at":null,"exclude":[],"expires_at":null,"grace":10000000,"jitter":0,"max_catch_up":1000,"max_fires":5,"name":"daily","overlap":"coalesce","pause_after_failures":null,"payload_json":"{\"x\":1}","prompt":"p","read_only":false,"retries":0,"schedule":{"anchor_at":null,"declared_in":"","kind":"cron","text":"0 9 * * 1-5"},"start_at":null,"tags":{"team":"x"},"thread_id":"","timezone":"Europe/Riga"}',1,1772442000000000,1772442000000000,NULL,NULL,0,0,0,NULL,0,NULL,NULL,NULL,NULL,0,NULL,NULL);
INSERT INTO "tasks" VALUES('task-d8f16adf','soon','active','','loop','general','{"agent":"agent0","budget":{},"catch_up":"run-once","catch_up_window":null,"category":"loop","channel":"general","end_at":null,"exclude":[],"expires_at":null,"grace":10000000,"jitter":0,"max_catch_up":1000,"max_fires":null,"name":"soon","overlap":"coalesce","pause_after_failures":null,"payload_json":"","prompt":"p","read_only":false,"retries":0,"schedule":{"anchor_at":null,"declared_in":"","kind":"at","text":"2026-03-02T09:05:00Z"},"start_at":null,"tags":{},"thread_id":"","timezone":"UTC"}',1,1772442000000000,1772442300000000,NULL,NULL,0,0,0,NULL,0,NULL,NULL,NULL,NULL,0,NULL,NULL);
CREATE TABLE triggers (
	entry_id INTEGER NOT NULL, 
	task_id VARCHAR NOT NULL, 
	fired BOOLEAN NOT NULL, 
	event VARCHAR NOT NULL, 
	event_id VARCHAR NOT NULL, 
	at_us BIGINT NOT NULL, 
	cause VARCHAR NOT NULL, 
	chain TEXT NOT NULL, 
	PRIMARY KEY (entry_id)
);
CREATE UNIQUE INDEX fires_fire_id ON fires (fire_id) WHERE fire_id IS NOT NULL;
CREATE INDEX fires_history ON fires (task_id, entry_id);
CREATE INDEX fires_open ON fires (task_id) WHERE is_open = 1;
CREATE INDEX fires_outcome ON fires (outcome, entry_id) WHERE is_open = 1;
CREATE INDEX fires_ready ON fires (caught_up, ready_us, entry_id) WHERE ready_us IS NOT NULL;
CREATE UNIQUE INDEX fires_request ON fires (task_id, request_id) WHERE request_id IS NOT NULL;
CREATE INDEX tasks_cursor ON tasks (cursor_us);
CREATE UNIQUE INDEX tasks_name ON tasks (name) WHERE state <> 'deleted';
CREATE INDEX tasks_wake ON tasks (wake_us) WHERE wake_us IS NOT NULL;
CREATE INDEX tasks_paced ON tasks (paced_thread) WHERE paced_thread IS NOT NULL;
CREATE INDEX tasks_made_by ON tasks (made_by) WHERE made_by IS NOT NULL;
CREATE INDEX tasks_ephemeral ON tasks (ephemeral) WHERE ephemeral = 1;
CREATE INDEX tasks_listens ON tasks (listens, state) WHERE listens IS NOT NULL;
CREATE INDEX events_at ON events (at_us);
CREATE INDEX triggers_task ON triggers (task_id, entry_id);
COMMIT;
