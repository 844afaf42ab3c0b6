// Package settings reads every WALSIDECAR_* setting of the sidecar, from the
// environment and from flags of the same name, and says where each value came from.
//
// It is envconfig behind a wrapper that closes envconfig's traps: a variable without
// the prefix is never looked at, a variable that is set but empty is an error, numbers
// are decimal, sizes and durations carry their unit, all malformed values are reported
// at once, and an unknown variable is named together with the nearest known one.
package settings

import "time"

// Prefix starts the name of every setting.
const Prefix = "WALSIDECAR_"

// Settings are the settings of one sidecar process. The tags are what `walsidecar config`
// and the flags' help print; choices, min and max are checked. A setting with an unset tag
// in place of a default is the zero value until set; the tag says what holds then.
//
// A Settings is made by Load and not changed afterwards.
type Settings struct {
	WAL            WALPath        `envconfig:"WALSIDECAR_WAL" default:"./walsidecar-data/wal" legal:"a path, uuid:LOG-UUID or ebs:vol-ID" meaning:"the log: a block device or a file"`
	WALSize        Size           `envconfig:"WALSIDECAR_WAL_SIZE" min:"32MiB" legal:"a whole number with a unit (B, KiB, MiB, GiB, TiB, kB, MB, GB, TB), at least 32MiB" unset:"1GiB for a new file, a device's own size" meaning:"size of the log"`
	IOPS           IOPS           `envconfig:"WALSIDECAR_WAL_IOPS" legal:"a whole number from 1 to 1000000" unset:"no limit" meaning:"write operations a second that the volume was bought with; they are never exceeded, and frames are made to need few"`
	Bandwidth      Size           `envconfig:"WALSIDECAR_WAL_BANDWIDTH" min:"1MB" legal:"a whole number with a unit (B, KiB, MiB, GiB, TiB, kB, MB, GB, TB), at least 1MB" unset:"no limit" meaning:"bytes a second that the volume was bought with"`
	Store          Store          `envconfig:"WALSIDECAR_STORE" legal:"s3://bucket/prefix?endpoint=…&region=…&path_style=true, a directory, or none" unset:"./walsidecar-data/objects for a file, must be set for a device" meaning:"where records go from the log"`
	Node           NodeName       `envconfig:"WALSIDECAR_NODE" legal:"1 to 63 of a-z A-Z 0-9 . _ - beginning with a letter or digit" unset:"the one in the log" meaning:"node name; if set, it must match the log's"`
	Socket         SocketPath     `envconfig:"WALSIDECAR_SOCKET" default:"./walsidecar-data/wal.sock" legal:"a path of at most 107 bytes" meaning:"the Unix socket that clients connect to"`
	Allow          Allow          `envconfig:"WALSIDECAR_ALLOW" legal:"uid:N and gid:N, separated by commas" unset:"own uid, own groups, root" meaning:"who may connect beside those"`
	HTTP           OptionalSocket `envconfig:"WALSIDECAR_HTTP" default:"off" legal:"a path of at most 107 bytes, or off" meaning:"the Unix socket of the HTTP door"`
	ShmWait        string         `envconfig:"WALSIDECAR_SHM_WAIT" default:"adaptive" choices:"adaptive spin block" legal:"adaptive, spin or block" meaning:"how long to look for more in shared memory before sleeping: some microseconds as long as that pays, up to 1ms each time (for a sidecar and clients with a core each), or not at all"`
	Admin          Address        `envconfig:"WALSIDECAR_ADMIN" default:"127.0.0.1:9470" legal:"HOST:PORT or off" meaning:"read-only health, metrics and status over HTTP"`
	PProf          string         `envconfig:"WALSIDECAR_PPROF" default:"off" choices:"on off" legal:"on or off" meaning:"Go profiles under /debug/pprof/ of the admin address"`
	Fence          string         `envconfig:"WALSIDECAR_FENCE" default:"auto" choices:"auto pr attach" legal:"auto, pr or attach" meaning:"what keeps an earlier owner from writing"`
	Volatile       string         `envconfig:"WALSIDECAR_FENCE_VOLATILE" default:"refuse" choices:"refuse accept" legal:"refuse or accept" meaning:"whether reservations that a target reset forgets will do"`
	Preempt        string         `envconfig:"WALSIDECAR_PREEMPT" default:"auto" choices:"auto abort plain" legal:"auto (abort on NVMe, plain and a wait on SCSI), abort or plain" meaning:"how a reservation is taken from an earlier owner"`
	LateWrites     time.Duration  `envconfig:"WALSIDECAR_LATE_WRITES" default:"5m0s" min:"1s" max:"24h" legal:"a duration from 1s to 24h" meaning:"T: how long a write that the device has accepted may take to land; a start behind one that died waits for it, and the window that a takeover jumped over is kept for it"`
	Stall          time.Duration  `envconfig:"WALSIDECAR_STALL" default:"10s" min:"1s" max:"10m" legal:"a duration from 1s to 10m" meaning:"L: a device write not seen complete within it has failed"`
	Linger         time.Duration  `envconfig:"WALSIDECAR_LINGER" default:"1s" min:"50ms" max:"1m" legal:"a duration from 50ms to 1m" meaning:"how long records wait for company on their way to the store: a put costs money"`
	RetentionAge   time.Duration  `envconfig:"WALSIDECAR_RETENTION_AGE" default:"0s" min:"0s" max:"87600h" legal:"a duration up to 87600h; 0s: for ever" meaning:"older records of every stream are trimmed"`
	RetentionBytes Size           `envconfig:"WALSIDECAR_RETENTION_BYTES" legal:"a whole number with a unit (B, KiB, MiB, GiB, TiB, kB, MB, GB, TB); 0B: no limit" unset:"no limit" meaning:"what a stream may take in the store; its oldest records beyond are trimmed"`
	OnFatal        string         `envconfig:"WALSIDECAR_ON_FATAL" default:"exit" choices:"exit park" legal:"exit or park" meaning:"after a failed device: exit, or stay with only the admin address alive"`
	Drain          time.Duration  `envconfig:"WALSIDECAR_DRAIN" default:"20s" min:"0s" max:"1h" legal:"a duration from 0s to 1h" meaning:"how long a shutdown waits for the last session to end"`
	SlowAppend     time.Duration  `envconfig:"WALSIDECAR_SLOW_APPEND" default:"1s" min:"1ms" max:"1h" legal:"a duration from 1ms to 1h" meaning:"an append slower than it is logged with its stages"`
	Memory         Size           `envconfig:"WALSIDECAR_MEMORY" default:"512MiB" min:"64MiB" legal:"a whole number with a unit (B, KiB, MiB, GiB, TiB, kB, MB, GB, TB), at least 64MiB" meaning:"rings, buffers, caches, everything; what needs more is refused"`

	sources map[string]Source // by setting name
}

// Source says where the value of a setting came from.
type Source string

// The sources, weakest first.
const (
	FromDefault     Source = "default"
	FromEnvironment Source = "environment"
	FromFlag        Source = "flag"
)

// Setting describes one setting and, when it came from Settings.List, its value.
type Setting struct {
	Name    string `json:"name"`    // WALSIDECAR_WAL_SIZE
	Flag    string `json:"flag"`    // wal-size
	Value   string `json:"value"`   // as it is in force, "" when Default is in words and holds
	Default string `json:"default"` // a value, or in words what it depends on
	Source  Source `json:"source"`
	Legal   string `json:"legal"`
	Meaning string `json:"meaning"`
}

// NewFileBytes is the size of a file log that is made without WALSIDECAR_WAL_SIZE.
const NewFileBytes = 1 << 30

// DefaultFileStore is the store of a file log unless WALSIDECAR_STORE says otherwise.
const DefaultFileStore Store = "./walsidecar-data/objects"

// MaxNodeBytes is the longest node name: the field in the superblock holds 63 bytes.
const MaxNodeBytes = 63

// MaxSocketPathBytes is the longest path of a Unix socket: sun_path holds 108 bytes with
// the NUL at its end.
const MaxSocketPathBytes = 107
