BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0004');
CREATE TABLE cancels (
	turn_id VARCHAR(64) NOT NULL,
	reason TEXT NOT NULL,
	at_us BIGINT NOT NULL,
	PRIMARY KEY (turn_id)
);
INSERT INTO "cancels" VALUES('turn-1','enough',1);
CREATE TABLE candidates (
	candidate_id VARCHAR(64) NOT NULL,
	kind VARCHAR(32) NOT NULL,
	channel VARCHAR(128) NOT NULL,
	page_id VARCHAR(100) NOT NULL,
	base_version INTEGER NOT NULL,
	title VARCHAR(200) NOT NULL,
	body TEXT NOT NULL,
	tags TEXT NOT NULL,
	origin VARCHAR(16) NOT NULL,
	lifecycle VARCHAR(16) NOT NULL,
	turn_id VARCHAR(128) NOT NULL,
	thread_id VARCHAR(256) NOT NULL,
	agent VARCHAR(32) NOT NULL,
	task_name VARCHAR(256) NOT NULL,
	created_at_us BIGINT NOT NULL,
	decided_at_us BIGINT,
	decided_by VARCHAR(64) NOT NULL,
	note TEXT NOT NULL,
	PRIMARY KEY (candidate_id),
	CONSTRAINT candidates_kind CHECK (kind IN ('candidate-page', 'candidate-summary')),
	CONSTRAINT candidates_origin CHECK (origin IN ('authored', 'agent-produced', 'imported', 'observed')),
	CONSTRAINT candidates_lifecycle CHECK (lifecycle IN ('candidate', 'canonical', 'rejected')),
	CONSTRAINT candidates_provenance CHECK (origin <> 'agent-produced' OR turn_id <> ''),
	CONSTRAINT candidates_decided CHECK ((lifecycle = 'candidate') = (decided_at_us IS NULL) AND (lifecycle = 'candidate') = (decided_by = ''))
);
CREATE TABLE delegations (
	turn_id VARCHAR(64) NOT NULL,
	sender VARCHAR(32) NOT NULL,
	parent VARCHAR(64) NOT NULL,
	agent VARCHAR(32) NOT NULL,
	hops INTEGER NOT NULL,
	state VARCHAR(16) NOT NULL,
	PRIMARY KEY (turn_id),
	CONSTRAINT delegations_state CHECK (state IN ('none', 'open', 'owed', 'answered'))
);
CREATE TABLE deliveries (
	"key" VARCHAR(256) NOT NULL,
	digest VARCHAR(64) NOT NULL,
	turn_id VARCHAR(64) NOT NULL,
	thread_id VARCHAR(128) NOT NULL,
	channel VARCHAR(128) NOT NULL,
	agent VARCHAR(32) NOT NULL,
	name VARCHAR(256) NOT NULL,
	fire_id VARCHAR(256) NOT NULL,
	attempt INTEGER NOT NULL,
	task_name VARCHAR(128) NOT NULL,
	state VARCHAR(16) NOT NULL,
	reason TEXT NOT NULL,
	at_us BIGINT NOT NULL,
	settled_at_us BIGINT,
	PRIMARY KEY ("key"),
	CONSTRAINT deliveries_state CHECK (state IN ('waiting', 'delivered', 'cancelled', 'failed')),
	UNIQUE (turn_id)
);
CREATE TABLE derivations (
	candidate_id VARCHAR(64) NOT NULL,
	source TEXT NOT NULL,
	page_version INTEGER NOT NULL,
	PRIMARY KEY (candidate_id, source),
	CONSTRAINT derivations_version CHECK (page_version >= 0 AND (page_version = 0) = (source LIKE '%://%'))
);
INSERT INTO "derivations" VALUES('c-1','garden',3);
INSERT INTO "derivations" VALUES('c-1','https://example.org/',0);
INSERT INTO "derivations" VALUES('c-2','garden',1);
CREATE TABLE effects (
	effect_key VARCHAR(512) NOT NULL,
	turn_id VARCHAR(128) NOT NULL,
	scope VARCHAR(64) NOT NULL,
	result_json TEXT NOT NULL,
	at_us BIGINT NOT NULL,
	PRIMARY KEY (effect_key)
);
CREATE TABLE interrupts (
	number INTEGER NOT NULL,
	interrupt_id VARCHAR(128) NOT NULL,
	turn_id VARCHAR(64) NOT NULL,
	thread_id VARCHAR(128) NOT NULL,
	channel VARCHAR(128) NOT NULL,
	kind VARCHAR(16) NOT NULL,
	tool VARCHAR(128) NOT NULL,
	args_json TEXT NOT NULL,
	args_hash VARCHAR(64) NOT NULL,
	call_id VARCHAR(128) NOT NULL,
	missing_scope VARCHAR(256) NOT NULL,
	question TEXT NOT NULL,
	allows_text BOOLEAN NOT NULL,
	status VARCHAR(16) NOT NULL,
	decision VARCHAR(16) NOT NULL,
	message TEXT NOT NULL,
	edited_json TEXT NOT NULL,
	applied BOOLEAN NOT NULL,
	created_at_us BIGINT NOT NULL,
	resolved_at_us BIGINT,
	PRIMARY KEY (number),
	CONSTRAINT interrupts_kind CHECK (kind IN ('permission', 'proposal', 'question', 'pause')),
	CONSTRAINT interrupts_status CHECK (status IN ('pending', 'resolved', 'void')),
	UNIQUE (interrupt_id)
);
CREATE TABLE kept_messages (
	number INTEGER NOT NULL,
	"key" VARCHAR(256) NOT NULL,
	thread_id VARCHAR(128) NOT NULL,
	trigger_json TEXT NOT NULL,
	at_us BIGINT NOT NULL,
	PRIMARY KEY (number),
	UNIQUE ("key")
);
CREATE TABLE keys (
	"key" VARCHAR(256) NOT NULL,
	digest VARCHAR(64) NOT NULL,
	turn_id VARCHAR(64) NOT NULL,
	thread_id VARCHAR(128) NOT NULL,
	fire_id VARCHAR(256) NOT NULL,
	attempt INTEGER NOT NULL,
	became VARCHAR(16) NOT NULL,
	"into" VARCHAR(64) NOT NULL,
	released BOOLEAN NOT NULL,
	at_us BIGINT NOT NULL,
	PRIMARY KEY ("key"),
	CONSTRAINT keys_became CHECK (became IN ('turn', 'held', 'kept', 'answer', 'refused')),
	UNIQUE (turn_id)
);
CREATE TABLE memory (
	entry_id VARCHAR(64) NOT NULL,
	tier VARCHAR(16) NOT NULL,
	owner VARCHAR(256) NOT NULL,
	"key" VARCHAR(100) NOT NULL,
	text TEXT NOT NULL,
	written_by VARCHAR(64) NOT NULL,
	turn_id VARCHAR(128) NOT NULL,
	created_at_us BIGINT NOT NULL,
	updated_at_us BIGINT NOT NULL,
	PRIMARY KEY (entry_id),
	CONSTRAINT memory_tier CHECK (tier IN ('conversation', 'channel', 'workspace', 'account')),
	CONSTRAINT memory_owner CHECK ((tier IN ('conversation', 'channel')) = (owner <> '')),
	CONSTRAINT memory_provenance CHECK (written_by <> '' AND turn_id <> '')
);
INSERT INTO "memory" VALUES('m-1','channel','general','bucket','blue','agent0','turn-1',1,2);
CREATE TABLE messages (
	turn_id VARCHAR(64) NOT NULL,
	position INTEGER NOT NULL,
	role VARCHAR(8) NOT NULL,
	text TEXT NOT NULL,
	tool_calls_json TEXT NOT NULL,
	tool_call_id VARCHAR(128) NOT NULL,
	at_us BIGINT NOT NULL,
	PRIMARY KEY (turn_id, position),
	CONSTRAINT messages_role CHECK (role IN ('author', 'agent', 'tool', 'trigger'))
);
CREATE TABLE meta (
	"key" VARCHAR(64) NOT NULL,
	value TEXT NOT NULL,
	PRIMARY KEY ("key")
);
CREATE TABLE page_versions (
	page_id VARCHAR(100) NOT NULL,
	version INTEGER NOT NULL,
	title VARCHAR(200) NOT NULL,
	body TEXT NOT NULL,
	tags TEXT NOT NULL,
	origin VARCHAR(16) NOT NULL,
	lifecycle VARCHAR(16) NOT NULL,
	turn_id VARCHAR(128) NOT NULL,
	candidate_id VARCHAR(64) NOT NULL,
	updated_by VARCHAR(64) NOT NULL,
	updated_at_us BIGINT NOT NULL,
	PRIMARY KEY (page_id, version),
	CONSTRAINT page_versions_origin CHECK (origin IN ('authored', 'agent-produced', 'imported', 'observed'))
);
CREATE TABLE pages (
	page_id VARCHAR(100) NOT NULL,
	title VARCHAR(200) NOT NULL,
	body TEXT NOT NULL,
	tags TEXT NOT NULL,
	origin VARCHAR(16) NOT NULL,
	lifecycle VARCHAR(16) NOT NULL,
	version INTEGER NOT NULL,
	turn_id VARCHAR(128) NOT NULL,
	candidate_id VARCHAR(64) NOT NULL,
	updated_by VARCHAR(64) NOT NULL,
	updated_at_us BIGINT NOT NULL,
	PRIMARY KEY (page_id),
	CONSTRAINT pages_origin CHECK (origin IN ('authored', 'agent-produced', 'imported', 'observed')),
	CONSTRAINT pages_lifecycle CHECK (lifecycle IN ('draft', 'canonical')),
	CONSTRAINT pages_provenance CHECK (origin <> 'agent-produced' OR turn_id <> ''),
	CONSTRAINT pages_accepted CHECK (origin <> 'agent-produced' OR candidate_id <> '')
);
INSERT INTO "pages" VALUES('pump','Pump','New.','[]','agent-produced','canonical',1,'turn-1','c-1','author',1);
CREATE TABLE token_days (
	day VARCHAR(10) NOT NULL,
	tokens BIGINT NOT NULL,
	PRIMARY KEY (day)
);
CREATE TABLE turn_events (
	sequence INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	turn_id VARCHAR(64) NOT NULL,
	fire_id VARCHAR(256) NOT NULL,
	attempt INTEGER NOT NULL,
	thread_id VARCHAR(128) NOT NULL,
	"trigger" VARCHAR(8) NOT NULL,
	state VARCHAR(16) NOT NULL,
	at_us BIGINT NOT NULL,
	summary TEXT NOT NULL,
	error TEXT NOT NULL,
	held_by_json TEXT NOT NULL,
	tokens_in INTEGER NOT NULL,
	tokens_out INTEGER NOT NULL,
	wake_after_s BIGINT
);
INSERT INTO "turn_events" VALUES(1,'turn-1','fire-1',1,'th','fire','succeeded',1,'','','',0,0,NULL);
CREATE TABLE turns (
	number INTEGER NOT NULL,
	turn_id VARCHAR(64) NOT NULL,
	thread_id VARCHAR(128) NOT NULL,
	channel VARCHAR(128) NOT NULL,
	agent VARCHAR(32) NOT NULL,
	category VARCHAR(64) NOT NULL,
	grant_json TEXT NOT NULL,
	"trigger" VARCHAR(8) NOT NULL,
	status VARCHAR(16) NOT NULL,
	visible BOOLEAN NOT NULL,
	fire_id VARCHAR(256) NOT NULL,
	attempt INTEGER NOT NULL,
	task_id VARCHAR(128) NOT NULL,
	task_name VARCHAR(128) NOT NULL,
	kind VARCHAR(32) NOT NULL,
	prompt TEXT NOT NULL,
	payload_json TEXT NOT NULL,
	read_only BOOLEAN NOT NULL,
	nominal_at_us BIGINT,
	due_at_us BIGINT,
	fired_at_us BIGINT,
	timezone VARCHAR(64) NOT NULL,
	catch_up VARCHAR(16) NOT NULL,
	stands_for INTEGER NOT NULL,
	first_nominal_at_us BIGINT,
	last_nominal_at_us BIGINT,
	traceparent VARCHAR(128) NOT NULL,
	started_at_us BIGINT NOT NULL,
	ended_at_us BIGINT,
	summary TEXT NOT NULL,
	error TEXT NOT NULL,
	answers_json TEXT NOT NULL,
	resumes VARCHAR(64) NOT NULL,
	after_message VARCHAR(128) NOT NULL,
	paused_until_us BIGINT,
	tries INTEGER NOT NULL,
	epoch INTEGER NOT NULL,
	tokens_in INTEGER NOT NULL,
	tokens_out INTEGER NOT NULL,
	wake_after_s BIGINT,
	PRIMARY KEY (number),
	CONSTRAINT turns_status CHECK (status IN ('running', 'interrupted', 'paused', 'succeeded', 'silent', 'failed', 'cancelled')),
	CONSTRAINT turns_trigger CHECK (trigger IN ('fire', 'author')),
	CONSTRAINT turns_fire CHECK ((trigger = 'fire') = (fire_id <> '')),
	UNIQUE (turn_id)
);
CREATE INDEX turns_by_status ON turns (status);
CREATE INDEX turns_by_thread ON turns (thread_id, number);
CREATE INDEX turns_by_channel ON turns (channel, number);
CREATE INDEX keys_by_thread ON keys (thread_id, became, released);
CREATE INDEX keys_by_fire ON keys (fire_id, attempt);
CREATE INDEX kept_messages_by_thread ON kept_messages (thread_id, number);
CREATE INDEX turn_events_by_turn ON turn_events (turn_id, sequence);
CREATE INDEX interrupts_by_status ON interrupts (status);
CREATE INDEX interrupts_by_turn ON interrupts (turn_id, number);
CREATE INDEX candidates_by_channel ON candidates (channel, created_at_us);
CREATE INDEX candidates_by_turn ON candidates (turn_id);
CREATE INDEX derivations_by_source ON derivations (source, page_version);
CREATE INDEX memory_by_age ON memory (tier, owner, updated_at_us);
CREATE UNIQUE INDEX memory_by_owner ON memory (tier, owner, "key");
CREATE INDEX effects_by_turn ON effects (turn_id);
CREATE INDEX delegations_owed ON delegations (turn_id) WHERE state = 'owed';
CREATE INDEX deliveries_waiting ON deliveries (agent) WHERE state = 'waiting';
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('turn_events',1);
COMMIT;
