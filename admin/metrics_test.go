package admin

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/walsidecar/walsidecar/node"
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/upload/store"
)

// An adopted log has every metric of the own one, told apart by its node alone, for as long as
// it is hosted.
func TestAdoptedLogsHaveTheMetricsOfTheOwnOne(t *testing.T) {
	own, peer := &node.Metrics{}, &node.Metrics{}
	own.Records.Store(3)
	peer.Records.Store(5)
	status := &node.Status{Node: "own", Uploads: &node.StatusUploads{LagRecords: 1}}
	var adopted []AdoptedLog
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(NewCollector(Sources{
		Ready: func() bool { return true }, Metrics: func() *node.Metrics { return own }, Status: func() *node.Status { return status },
		Host: session.NewHost(session.Options{Budget: session.NewBudget(1 << 20)}), Store: func() *store.Counters { return nil },
		Adopted: func() []AdoptedLog { return adopted },
	}))
	url := start(t, Options{Gatherer: registry})
	ownAlone := func() {
		t.Helper()
		if code, text := get(t, url+"/metrics"); code != 200 || strings.Contains(text, `node="`) {
			t.Fatalf("/metrics without an adopted log: %d %s", code, text)
		}
	}
	ownAlone()
	adopted = []AdoptedLog{{Node: "shop-1", Metrics: peer, Status: &node.Status{Node: "shop-1", Uploads: &node.StatusUploads{LagRecords: 7}}}}
	_, text := get(t, url+"/metrics")
	for _, want := range []string{"walsidecar_records_total 3\n", "walsidecar_records_total{node=\"shop-1\"} 5\n",
		"walsidecar_upload_lag_records 1\n", "walsidecar_upload_lag_records{node=\"shop-1\"} 7\n", "walsidecar_log_full_in_seconds{node=\"shop-1\"} +Inf\n",
		"walsidecar_producers{kind=\"named\",node=\"shop-1\"} 0\n"} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	for _, process := range []string{"walsidecar_ready{", "walsidecar_sessions{"} {
		if strings.Contains(text, process) {
			t.Errorf("%s: it is of the process", process)
		}
	}
	adopted = nil
	ownAlone()
}
