package device

import (
	"errors"
	"time"
)

// Profile is the behaviour of a kind of volume; the zero value shapes nothing.
type Profile struct {
	Name           string
	Seed           uint64     // of latencies and pauses
	ReadLatency    []Quantile // ascending; none: no latency
	WriteLatency   []Quantile
	IOPS           int           // operations per second, each of up to OpBytes; 0: no limit
	OpBytes        int           // a larger request counts as several operations
	BytesPerSecond int64         // 0: no limit
	PauseEvery     time.Duration // mean time between pauses; 0: none
	PauseFor       time.Duration // longest pause; they are uniform between a quarter of it and it
}

// Quantile is one point of a latency distribution: a share P of the operations
// takes at most D.
type Quantile struct {
	P float64
	D time.Duration
}

// ProfileNamed is the profile "gp3", "io2" or "none".
func ProfileNamed(name string) (Profile, error) { return Profile{}, errors.New("skeleton") }

// Shape makes d as slow as p says. Data goes to d at once and answers wait, so
// what is durable does not depend on it.
func Shape(d Device, p Profile) Device { return d }
