CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);

CREATE TABLE audit (
    id BIGSERIAL NOT NULL,
    at BIGINT NOT NULL,
    action VARCHAR(64) NOT NULL,
    actor_id VARCHAR(32),
    credential_kind VARCHAR(16) NOT NULL,
    credential_id VARCHAR(32),
    target VARCHAR(64),
    address VARCHAR(64),
    details JSON NOT NULL,
    CONSTRAINT pk_audit PRIMARY KEY (id)
);
CREATE INDEX ix_audit_action_at_id ON audit (action, at, id);
CREATE INDEX ix_audit_actor_id_at_id ON audit (actor_id, at, id);
CREATE INDEX ix_audit_at ON audit (at);
CREATE INDEX ix_audit_credential_id_at_id ON audit (credential_id, at, id);
CREATE INDEX ix_audit_target_at_id ON audit (target, at, id);

CREATE TABLE deployment (
    name VARCHAR(64) NOT NULL,
    value VARCHAR(255) NOT NULL,
    noted_at BIGINT NOT NULL,
    CONSTRAINT pk_deployment PRIMARY KEY (name)
);

CREATE TABLE login_attempts (
    key VARCHAR(128) NOT NULL,
    attempts INTEGER NOT NULL,
    expires_at BIGINT NOT NULL,
    CONSTRAINT pk_login_attempts PRIMARY KEY (key)
);
CREATE INDEX ix_login_attempts_expires_at ON login_attempts (expires_at);

CREATE TABLE logout_tokens (
    issuer VARCHAR(255) NOT NULL,
    jti VARCHAR(255) NOT NULL,
    expires_at BIGINT NOT NULL,
    subject VARCHAR(255),
    provider_sid VARCHAR(255),
    received_at BIGINT,
    CONSTRAINT pk_logout_tokens PRIMARY KEY (issuer, jti)
);
CREATE INDEX ix_logout_tokens_expires_at ON logout_tokens (expires_at);

CREATE TABLE msk_auth_api_keys (
    id VARCHAR(64) COLLATE "C" NOT NULL,
    name TEXT NOT NULL,
    owner_id VARCHAR(255) COLLATE "C" NOT NULL,
    digest VARCHAR(255) COLLATE "C" NOT NULL,
    scopes TEXT,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    last_used_at BIGINT,
    revoked_at BIGINT,
    replaced_by VARCHAR(64) COLLATE "C",
    deleted_at BIGINT,
    description TEXT,
    labels TEXT,
    networks TEXT,
    announced_days INTEGER,
    CONSTRAINT pk_msk_auth_api_keys PRIMARY KEY (id)
);
CREATE INDEX ix_msk_auth_api_keys_active ON msk_auth_api_keys (owner_id, revoked_at, expires_at, created_at, id);
CREATE INDEX ix_msk_auth_api_keys_expiring ON msk_auth_api_keys (announced_days, revoked_at, expires_at, id);
CREATE INDEX ix_msk_auth_api_keys_listed ON msk_auth_api_keys (owner_id, deleted_at, created_at, id);

CREATE TABLE msk_auth_api_keys_activity (
    key_id VARCHAR(64) COLLATE "C" NOT NULL,
    day DATE NOT NULL,
    accepted BIGINT NOT NULL,
    refused BIGINT NOT NULL,
    CONSTRAINT pk_msk_auth_api_keys_activity PRIMARY KEY (key_id, day)
);
CREATE INDEX ix_msk_auth_api_keys_activity_day ON msk_auth_api_keys_activity (day);

CREATE TABLE msk_auth_api_keys_last_requests (
    key_id VARCHAR(64) COLLATE "C" NOT NULL,
    at BIGINT NOT NULL,
    route TEXT,
    address TEXT,
    user_agent TEXT,
    CONSTRAINT pk_msk_auth_api_keys_last_requests PRIMARY KEY (key_id)
);
CREATE INDEX ix_msk_auth_api_keys_last_requests_at ON msk_auth_api_keys_last_requests (at);

CREATE TABLE msk_auth_api_keys_registers (
    name VARCHAR(319) COLLATE "C" NOT NULL,
    value BIGINT NOT NULL,
    CONSTRAINT pk_msk_auth_api_keys_registers PRIMARY KEY (name)
);

CREATE TABLE queue_migrations (
    name VARCHAR(255) NOT NULL,
    CONSTRAINT pk_queue_migrations PRIMARY KEY (name)
);

CREATE TABLE schema_works_with (
    revision VARCHAR(32) NOT NULL,
    code VARCHAR(32) NOT NULL,
    CONSTRAINT pk_schema_works_with PRIMARY KEY (revision, code)
);

CREATE TABLE secret_checks (
    pepper_id VARCHAR(255) NOT NULL,
    fingerprint VARCHAR(64) NOT NULL,
    CONSTRAINT pk_secret_checks PRIMARY KEY (pepper_id)
);

CREATE TABLE settings (
    name VARCHAR(64) NOT NULL,
    value JSON NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by VARCHAR(32),
    CONSTRAINT pk_settings PRIMARY KEY (name)
);

CREATE TABLE users (
    id VARCHAR(32) NOT NULL,
    username VARCHAR(64) NOT NULL,
    roles JSON NOT NULL,
    password_hash VARCHAR(255),
    external_login BOOLEAN DEFAULT false NOT NULL,
    disabled_at BIGINT,
    created_at BIGINT NOT NULL,
    last_login_at BIGINT,
    service_account BOOLEAN DEFAULT false NOT NULL,
    description TEXT,
    deleted_at BIGINT,
    CONSTRAINT pk_users PRIMARY KEY (id),
    CONSTRAINT ck_users_service_account_login CHECK (NOT service_account OR (password_hash IS NULL AND NOT external_login)),
    CONSTRAINT uq_users_username UNIQUE (username)
);

CREATE TABLE idempotency (
    owner_id VARCHAR(32) NOT NULL,
    key VARCHAR(255) NOT NULL,
    task_id VARCHAR(32) NOT NULL,
    run_id VARCHAR(32) NOT NULL,
    created_at BIGINT NOT NULL,
    CONSTRAINT pk_idempotency PRIMARY KEY (owner_id, key),
    CONSTRAINT fk_idempotency_owner_id_users FOREIGN KEY(owner_id) REFERENCES users (id)
);
CREATE INDEX ix_idempotency_created_at ON idempotency (created_at);

CREATE TABLE identities (
    issuer VARCHAR(255) NOT NULL,
    subject VARCHAR(255) NOT NULL,
    user_id VARCHAR(32) NOT NULL,
    created_at BIGINT NOT NULL,
    CONSTRAINT pk_identities PRIMARY KEY (issuer, subject),
    CONSTRAINT fk_identities_user_id_users FOREIGN KEY(user_id) REFERENCES users (id)
);
CREATE INDEX ix_identities_user_id ON identities (user_id);

CREATE TABLE password_links (
    token_digest VARCHAR(64) NOT NULL,
    user_id VARCHAR(32) NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    used_at BIGINT,
    CONSTRAINT pk_password_links PRIMARY KEY (token_digest),
    CONSTRAINT fk_password_links_user_id_users FOREIGN KEY(user_id) REFERENCES users (id)
);
CREATE INDEX ix_password_links_user_id ON password_links (user_id);

CREATE TABLE sessions (
    id VARCHAR(32) NOT NULL,
    user_id VARCHAR(32) NOT NULL,
    authenticated_at BIGINT NOT NULL,
    started_at BIGINT,
    id_token TEXT,
    provider_sid VARCHAR(255),
    last_seen_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    ended_at BIGINT,
    address VARCHAR(64),
    user_agent VARCHAR(256),
    CONSTRAINT pk_sessions PRIMARY KEY (id),
    CONSTRAINT fk_sessions_user_id_users FOREIGN KEY(user_id) REFERENCES users (id)
);
CREATE INDEX ix_sessions_user_id ON sessions (user_id);

CREATE TABLE tasks (
    id VARCHAR(32) NOT NULL,
    owner_id VARCHAR(32) NOT NULL,
    name VARCHAR(100) NOT NULL,
    handler VARCHAR(64) NOT NULL,
    params JSON NOT NULL,
    timeout_seconds INTEGER,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    deleted_at BIGINT,
    last_run_number BIGINT,
    CONSTRAINT pk_tasks PRIMARY KEY (id),
    CONSTRAINT fk_tasks_owner_id_users FOREIGN KEY(owner_id) REFERENCES users (id)
);
CREATE INDEX ix_tasks_created_at_id ON tasks (created_at, id);
CREATE INDEX ix_tasks_owner_id_created_at_id ON tasks (owner_id, created_at, id);

CREATE TABLE waiting_owners (
    owner_id VARCHAR(32) NOT NULL,
    lane INTEGER NOT NULL,
    turn BIGINT NOT NULL,
    CONSTRAINT pk_waiting_owners PRIMARY KEY (owner_id),
    CONSTRAINT fk_waiting_owners_owner_id_users FOREIGN KEY(owner_id) REFERENCES users (id)
);
CREATE INDEX ix_waiting_owners_lane_turn_owner_id ON waiting_owners (lane, turn, owner_id);

CREATE TABLE runs (
    id VARCHAR(32) NOT NULL,
    task_id VARCHAR(32) NOT NULL,
    number BIGINT,
    owner_id VARCHAR(32) NOT NULL,
    state VARCHAR(16) NOT NULL,
    attempt INTEGER DEFAULT 0 NOT NULL,
    requested_by JSON NOT NULL,
    handler VARCHAR(64) NOT NULL,
    params JSON NOT NULL,
    timeout_seconds INTEGER NOT NULL,
    created_at BIGINT NOT NULL,
    started_at BIGINT,
    finished_at BIGINT,
    exit_code INTEGER,
    error TEXT,
    cancel_requested_at BIGINT,
    claimed_by VARCHAR(64),
    lease_expires_at BIGINT,
    log_bytes INTEGER DEFAULT 0 NOT NULL,
    log_missing_bytes BIGINT DEFAULT 0 NOT NULL,
    log_missing_lines BIGINT DEFAULT 0 NOT NULL,
    log_truncated BOOLEAN DEFAULT false NOT NULL,
    rank INTEGER DEFAULT 0 NOT NULL,
    progress FLOAT,
    progress_text VARCHAR(200),
    CONSTRAINT pk_runs PRIMARY KEY (id),
    CONSTRAINT fk_runs_owner_id_users FOREIGN KEY(owner_id) REFERENCES users (id),
    CONSTRAINT fk_runs_task_id_tasks FOREIGN KEY(task_id) REFERENCES tasks (id)
);
CREATE INDEX ix_runs_state_created_at ON runs (state, created_at);
CREATE INDEX ix_runs_state_owner_id_rank_created_at_id ON runs (state, owner_id, rank, created_at, id);
CREATE INDEX ix_runs_task_id_created_at_id ON runs (task_id, created_at, id);
CREATE INDEX ix_runs_task_id_state_created_at_id ON runs (task_id, state, created_at, id);

CREATE TABLE run_log (
    run_id VARCHAR(32) NOT NULL,
    seq INTEGER NOT NULL,
    at BIGINT NOT NULL,
    stream VARCHAR(8) NOT NULL,
    text TEXT NOT NULL,
    CONSTRAINT pk_run_log PRIMARY KEY (run_id, seq),
    CONSTRAINT fk_run_log_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id)
);

INSERT INTO schema_works_with (revision, code) VALUES ('0019', '0018');
INSERT INTO alembic_version (version_num) VALUES ('0019');
