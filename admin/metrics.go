package admin

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/walsidecar/walsidecar/node"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/upload/store"
	"github.com/walsidecar/walsidecar/wire"
)

// Sources are where the metrics come from. The functions are called at every scrape.
type Sources struct {
	Version, Revision, GoVersion string

	Ready   func() bool
	Metrics func() *node.Metrics // nil until the log is open
	Status  func() *node.Status  // nil until the log is open
	Host    *session.Host
	Store   func() *store.Counters // nil without a store
	Adopted func() []AdoptedLog    // hosted beside the own log
}

// AdoptedLog is the log of a peer. Its metrics are those of the own log, with the label node.
type AdoptedLog struct {
	Node    string
	Metrics *node.Metrics
	Status  *node.Status
}

// Describe sends nothing, as Collector's.
func (a *AdoptedLog) Describe(chan<- *prometheus.Desc) {}

// Collect is called at a scrape.
func (a *AdoptedLog) Collect(ch chan<- prometheus.Metric) {
	e := emitter{ch}
	e.work(a.Metrics)
	e.state(a.Status)
}

// Collector turns the numbers of a sidecar into metrics when it is scraped; nothing is
// counted twice. There is no label whose values a client chooses.
type Collector struct{ sources Sources }

// NewCollector returns a collector to be registered.
func NewCollector(s Sources) *Collector { return &Collector{sources: s} }

// RegisterRuntime adds the metrics of the Go runtime and of the process.
func RegisterRuntime(r prometheus.Registerer) {
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("walsidecar_"+name, help, labels, nil)
}

var (
	buildInfo = describe("build_info", "What binary this is; always 1.", "version", "revision", "go")
	ready     = describe("ready", "1 while clients are served.")

	appendSeconds = describe("append_seconds", "From an append's decision to its answer.")
	stageSeconds  = describe("append_stage_seconds", "Stages of an append, each from the end of the one before.", "stage")
	appends       = describe("appends_total", "Batches appended.")
	records       = describe("records_total", "Records appended.")
	payloadBytes  = describe("payload_bytes_total", "Bytes of payload appended.")
	frames        = describe("frames_written_total", "Frames handed to the device.", "kind")
	deviceWrites  = describe("device_writes_total", "Data-sync writes, of frames and superblocks.")
	deviceBytes   = describe("device_written_bytes_total", "Bytes of frames written, padding included.")
	inFlight      = describe("frames_in_flight", "Frames on their way to the device.")
	degraded      = describe("log_degraded", "1 while a device write is unusually slow.")
	failedLog     = describe("log_failed", "1 once the log has stopped for good.")

	headPosition    = describe("head_position_bytes", "Where the next frame begins in the unwrapped log.")
	durablePosition = describe("durable_position_bytes", "Everything below it is on stable media.")
	trimPosition    = describe("trim_position_bytes", "Where the log begins.")
	capacityBytes   = describe("log_capacity_bytes", "Size of the ring.")
	usedBytes       = describe("log_used_bytes", "Bytes between trim and head position.")
	roomBytes       = describe("log_room_bytes", "Bytes that appends may still take.")
	fullInSeconds   = describe("log_full_in_seconds", "Until appends are refused, at the growth of the last seconds; +Inf while it does not grow.")

	streams   = describe("streams", "Streams in the log.")
	producers = describe("producers", "Producers known to the log.", "kind")
	errorsBy  = describe("errors_total", "Requests refused or failed.", "code")

	sessions        = describe("sessions", "Clients connected.")
	sessionsOpened  = describe("sessions_opened_total", "Clients that were let in.")
	sessionsEnded   = describe("sessions_ended_total", "Sessions that ended, or were refused, by reason; ok is a client that left by itself.", "code")
	sessionBytes    = describe("session_memory_bytes", "Memory taken for sessions.")
	ringBytes       = describe("session_shared_memory_bytes", "Memory taken for the shared memory of sessions, a part of session_memory_bytes.")
	sessionMaxBytes = describe("session_memory_limit_bytes", "Memory that sessions may take.")
)

// Describe sends nothing: which metrics there are depends on how far the start has come.
func (c *Collector) Describe(chan<- *prometheus.Desc) {}

// Collect is called by the registry at a scrape.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	e := emitter{ch}
	s := &c.sources
	e.gauge(buildInfo, 1, s.Version, s.Revision, s.GoVersion)
	e.gauge(ready, boolean(s.Ready()))
	e.host(s.Host)
	if c := s.Store(); c != nil {
		e.requests(c)
	}
	if m := s.Metrics(); m != nil {
		e.work(m)
	}
	if status := s.Status(); status != nil {
		e.state(status)
	}
	for _, a := range s.Adopted() {
		prometheus.WrapCollectorWith(prometheus.Labels{"node": a.Node}, &a).Collect(ch)
	}
}

// emitter sends metrics of a scrape.
type emitter struct{ ch chan<- prometheus.Metric }

func (e emitter) gauge(d *prometheus.Desc, v float64, labels ...string) {
	e.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (e emitter) counter(d *prometheus.Desc, v uint64, labels ...string) {
	e.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func (e emitter) histogram(d *prometheus.Desc, h *node.Histogram, labels ...string) {
	buckets, count, sum := h.Snapshot()
	e.ch <- prometheus.MustNewConstHistogram(d, count, sum, buckets, labels...)
}

func (e emitter) host(h *session.Host) {
	s := h.Stats()
	e.gauge(sessions, float64(s.Sessions))
	e.counter(sessionsOpened, s.Opened)
	e.gauge(sessionBytes, float64(s.BudgetUsed))
	e.gauge(ringBytes, float64(s.RingBytes))
	e.gauge(sessionMaxBytes, float64(s.BudgetBytes))
	h.Ended(func(code wire.Code, n uint64) { e.counter(sessionsEnded, n, code.String()) })
}

// work sends what the log did.
func (e emitter) work(m *node.Metrics) {
	for stage := range m.Stages {
		if stage == node.StageTotal {
			e.histogram(appendSeconds, &m.Stages[stage])
			continue
		}
		e.histogram(stageSeconds, &m.Stages[stage], node.StageNames[stage])
	}
	e.counter(appends, m.Appends.Load())
	e.counter(records, m.Records.Load())
	e.counter(payloadBytes, m.PayloadBytes.Load())
	for _, kind := range []ringwal.FrameKind{ringwal.FrameData, ringwal.FramePad, ringwal.FrameSeal, ringwal.FrameCheckpoint} {
		e.counter(frames, m.Frames[kind].Load(), kind.String())
	}
	e.counter(deviceWrites, m.DeviceWrites.Load())
	e.counter(deviceBytes, m.DeviceBytes.Load())
	for _, info := range wire.Errors() {
		if info.Code != wire.CodeOK && int(info.Code) < len(m.Refused) {
			e.counter(errorsBy, m.Refused[info.Code].Load(), info.Name)
		}
	}
}

// state sends how the log stands.
func (e emitter) state(s *node.Status) {
	e.gauge(fenceMode, 1, s.Fence.Mode)
	if s.Uploads != nil {
		e.uploads(s.Uploads)
	}
	e.gauge(inFlight, float64(s.FramesInFlight))
	e.gauge(degraded, boolean(s.State == "degraded"))
	e.gauge(failedLog, boolean(s.State == "failed"))
	e.gauge(headPosition, float64(s.HeadPosition))
	e.gauge(durablePosition, float64(s.DurablePosition))
	e.gauge(trimPosition, float64(s.TrimPosition))
	e.gauge(capacityBytes, float64(s.CapacityBytes))
	e.gauge(usedBytes, float64(s.UsedBytes))
	e.gauge(roomBytes, float64(s.RoomBytes))
	seconds := math.Inf(1)
	if s.SecondsToFull != nil {
		seconds = float64(*s.SecondsToFull)
	}
	e.gauge(fullInSeconds, seconds)
	e.gauge(streams, float64(s.Streams))
	e.gauge(producers, float64(s.NamedProducers), "named")
	e.gauge(producers, float64(s.SessionProducers), "session")
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
