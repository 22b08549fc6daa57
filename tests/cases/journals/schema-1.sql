BEGIN TRANSACTION;
CREATE TABLE events (
	id INTEGER NOT NULL, 
	digest VARCHAR NOT NULL, 
	session VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	proposal VARCHAR NOT NULL, 
	time DOUBLE NOT NULL, 
	folder VARCHAR, 
	path VARCHAR, 
	qualname VARCHAR, 
	client VARCHAR, 
	data JSON NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (digest), 
	FOREIGN KEY(session) REFERENCES sessions (id) ON DELETE CASCADE
);
INSERT INTO "events" VALUES(1,'7d024537664427816627392960222e70b4cd6839eccf04b514413bbab2eb9ace','d99e8a645884','offered','p1',1767323040.5,'enigma-c71839adc778','src/net.py','Net','Neovim 0.10','{"before": "A"}');
CREATE TABLE proposals (
	id VARCHAR NOT NULL, 
	folder VARCHAR NOT NULL, 
	path VARCHAR NOT NULL, 
	session VARCHAR, 
	saved DOUBLE NOT NULL, 
	qualname VARCHAR NOT NULL, 
	verdict VARCHAR NOT NULL, 
	status VARCHAR NOT NULL, 
	device VARCHAR NOT NULL, 
	device_name VARCHAR, 
	speedup_low DOUBLE, 
	speedup_mid DOUBLE, 
	speedup_high DOUBLE, 
	skills JSON NOT NULL, 
	version VARCHAR NOT NULL, 
	keep_source BOOLEAN NOT NULL, 
	body JSON NOT NULL, 
	PRIMARY KEY (id, folder, path)
);
INSERT INTO "proposals" VALUES('p1','enigma-c71839adc778','n.py','637431330353',1.7956927514107773304e+09,'Net','faster','passed','cpu',NULL,1.4,1.5,1.6,'["fuse", "hoist"]','0.1.0',1,'{"id": "p1", "fingerprint": "A", "fingerprint_after": "B", "qualname": "Net", "workload": {"name": "w", "origin": "pragma", "inputs": null, "init": null, "training": null, "setting": {"autocast": null, "gradients": null, "inference": false, "matmul_precision": null, "cudnn_tf32": null, "cudnn_benchmark": null, "compiled": false}}, "candidate": {"id": "c1", "edit": {"qualname": "Net", "imports": ["import torch"], "definitions": "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "target": "sha256:6cd1de8e83909729dd561776f3d253530ca6e96258e6d9c3990ce1a3b8765f16", "others": []}, "program": "sha256:7d681cda8491e709e9304cf4bf473d67c247003ce1d05a46d9cf1895415e0edc", "entry": "Net", "steps": [{"skill": "fuse", "site": "s", "parameters": {}}, {"skill": "fuse", "site": "t", "parameters": {}}, {"skill": "hoist", "site": "u", "parameters": {}}], "proofs": [], "summary": "", "caveats": [], "proposer": "plan", "turn": 0, "parent": null, "move": "seed", "advice": [], "search": null, "uses_triton": false}, "evaluation": {"status": "passed", "device": "cpu", "detail": "Traceback:\n  File \".../net.py\", line 3\n    class Net:  # the crown jewels\nRuntimeError: in .../net.py", "device_name": null, "checks": [], "timings": [], "speedups": {"eager": {"low": 1.4, "mid": 1.5, "high": 1.6, "confidence": 0.95}}, "device_timings": [], "device_speedups": {}, "numerics": null, "kernels": [], "peak_bytes": {}, "environment": {"python": ".../python", "torch": "2.13.0"}, "seconds": null, "runs_as": "eager", "least_ms": null, "shapes": [], "unsure": "", "profiles": [], "coverage": null}, "verdict": "faster", "created": "2026-01-02T03:04:05+00:00", "evidence": null, "inputs": []}');
CREATE TABLE schema_version (
	version INTEGER NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "schema_version" VALUES(1);
CREATE TABLE sessions (
	id VARCHAR NOT NULL, 
	client VARCHAR, 
	folder VARCHAR, 
	version VARCHAR NOT NULL, 
	started DOUBLE NOT NULL, 
	ended DOUBLE, 
	PRIMARY KEY (id)
);
INSERT INTO "sessions" VALUES('d99e8a645884','Neovim 0.10','enigma-c71839adc778','0.1.0',1.79569275140509819988e+09,1.7956927514181730747e+09);
INSERT INTO "sessions" VALUES('637431330353',NULL,'enigma-c71839adc778','0.1.0',1.79569275140966367722e+09,1.7956927514181730747e+09);
CREATE TABLE sources (
	proposal VARCHAR NOT NULL, 
	folder VARCHAR NOT NULL, 
	path VARCHAR NOT NULL, 
	field VARCHAR NOT NULL, 
	text VARCHAR NOT NULL, 
	PRIMARY KEY (proposal, folder, path, field)
);
INSERT INTO "sources" VALUES('p1','enigma-c71839adc778','n.py','program','import torch
class Net:  # the crown jewels');
INSERT INTO "sources" VALUES('p1','enigma-c71839adc778','n.py','edit.definitions','');
INSERT INTO "sources" VALUES('p1','enigma-c71839adc778','n.py','edit.target','class Net:  # the crown jewels');
INSERT INTO "sources" VALUES('p1','enigma-c71839adc778','n.py','reference','class Net:  # the crown jewels');
CREATE TABLE tracker (
	folder VARCHAR NOT NULL, 
	proposal VARCHAR NOT NULL, 
	target VARCHAR NOT NULL, 
	since DOUBLE NOT NULL, 
	state JSON NOT NULL, 
	PRIMARY KEY (folder, proposal, target)
);
CREATE INDEX ix_sessions_folder ON sessions (folder);
CREATE INDEX ix_proposals_session ON proposals (session);
CREATE INDEX ix_proposals_saved ON proposals (saved);
CREATE INDEX ix_events_session ON events (session);
CREATE INDEX events_of_folder ON events (folder, kind);
CREATE INDEX ix_events_time ON events (time);
CREATE INDEX ix_events_proposal ON events (proposal);
COMMIT;
