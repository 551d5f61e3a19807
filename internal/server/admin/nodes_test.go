package admin

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/shoal-llm/shoal/client/wire"
)

// stateCollector exports one state of a cluster.
type stateCollector struct{ state *wire.ClusterState }

func (c stateCollector) Describe(ch chan<- *prometheus.Desc) { clusterMetrics.describe(ch) }
func (c stateCollector) Collect(ch chan<- prometheus.Metric) { clusterMetrics.collect(ch, c.state) }

// The label of the states of nodes is the state, without the reason of a node that is refused: alerts match it, and a
// label with free texts has any number of values.
func TestNodeStatesAreWords(t *testing.T) {
	r := prometheus.NewRegistry()
	r.MustRegister(stateCollector{&wire.ClusterState{Nodes: []wire.NodeState{{ID: "a", State: "ready"},
		{ID: "b", State: "refused: other files"}, {ID: "c", State: "refused: another build"}, {ID: "d", State: "fenced"}}}})
	w := httptest.NewRecorder()
	promhttp.HandlerFor(r, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	var got []string
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "shoal_nodes{") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	if want := `shoal_nodes{state="fenced"} 1|shoal_nodes{state="ready"} 1|shoal_nodes{state="refused"} 2`; strings.Join(got, "|") != want {
		t.Errorf("%s\nwant %s", strings.Join(got, "|"), want)
	}
}
