package load

import "time"

// Report is one measured cell, as it is printed. Latencies count from the
// intended send time.
type Report struct {
	Door     string  `json:"door"`
	Durable  bool    `json:"durable"` // false: the door alone, nothing was kept
	Profile  string  `json:"profile,omitempty"`
	Size     int     `json:"size"`
	Producer int     `json:"producers"`
	InFlight int     `json:"inflight"`
	Rate     float64 `json:"rate,omitempty"` // of the open loop
	Sessions int     `json:"sessions"`
	Seconds  float64 `json:"seconds"`
	Appends  uint64  `json:"appends"`

	AppendsPerSecond float64 `json:"appends_per_s"`
	MBPerSecond      float64 `json:"mb_per_s"`
	P50              float64 `json:"p50_us"`
	P99              float64 `json:"p99_us"`
	P999             float64 `json:"p999_us"`
	Max              float64 `json:"max_us"`
	CPU              float64 `json:"cpu_us_per_append"` // client and sidecar
	ClientCPU        float64 `json:"client_cpu_us_per_append"`
	DeviceWrites     float64 `json:"device_writes_per_append"`
	DeviceWritesRate float64 `json:"device_writes_per_s"`
	DeviceBytes      float64 `json:"device_bytes_per_payload_byte"`
	RTT              float64 `json:"rtt_p50_us"` // the door alone, with nothing in flight; of shm before a log: the socket's

	*RawReport
}

// RawReport is what the device itself did, in turns with the load, and the load
// beside it. Latencies are those of one write after the other, or of an open loop those
// of as many writes a second as the load made, from the time that each was due.
type RawReport struct {
	FrameBytes       int     `json:"raw_write_bytes"` // of the latencies: the mean write of the load
	P50              float64 `json:"raw_p50_us"`
	P99              float64 `json:"raw_p99_us"`
	P999             float64 `json:"raw_p999_us"`
	MBPerSecond      float64 `json:"raw_mb_per_s"`
	RatioP50         float64 `json:"ratio_p50"`
	RatioP99         float64 `json:"ratio_p99"`
	RatioOfBandwidth float64 `json:"ratio_bandwidth"`
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// per divides; 0 of 0 is 0.
func per(sum, count float64) float64 {
	if count == 0 {
		return 0
	}
	return sum / count
}
