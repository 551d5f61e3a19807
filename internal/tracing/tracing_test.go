package tracing

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"

	"github.com/shoal-llm/shoal/internal/tracing/tracingtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

// TestPhases: the phases of a sequence are consecutive children of the span of its request, which
// is a child of the client's span. An occasional step is exported, with links to its requests.
func TestPhases(t *testing.T) {
	out := tracetest.NewInMemoryExporter()
	tr := newTracer(sdk.NewTracerProvider(sdk.WithSyncer(out)), time.Hour)
	hr := httptest.NewRequest(http.MethodPost, "/v1/completions", nil)
	hr.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	r := tr.Request(hr, "/v1/completions", "req-7")
	r.Begins("s-0")
	began := time.Unix(1_700_000_000, 0)
	if !tr.StepDue(began) || tr.StepDue(began.Add(time.Minute)) {
		t.Error("not one step in an hour is due")
	}
	tr.Step(Step{Epoch: 3, Number: 9, Began: began, Took: 5 * time.Millisecond, Rows: 2, Sequences: []string{"s-0", "somebody else's"},
		Nodes: []Node{{ID: "n0", Compute: 3 * time.Millisecond, Wait: time.Millisecond}}})
	r.Sequence(Sequence{ID: "s-0", Began: began, Queue: 1 * time.Second, Prefill: 2 * time.Second,
		Decode: 3 * time.Second, Prompt: 5, Output: 4, Finish: "stop",
		Steps: Steps{Steps: 4, Wait: time.Second}})
	r.End(200)
	if len(tr.sequences) != 0 {
		t.Errorf("after its end %v is remembered", tr.sequences)
	}
	spans := map[string]tracetest.SpanStub{}
	for _, s := range out.GetSpans() {
		spans[s.Name] = s
	}
	request := spans["POST /v1/completions"]
	if got := request.SpanContext.TraceID().String(); got != "0af7651916cd43dd8448eb211c80319c" {
		t.Errorf("the request is in trace %s, not in the client's", got)
	}
	at := began
	for _, p := range []struct {
		name string
		took time.Duration
	}{{"queue", 1 * time.Second}, {"prefill", 2 * time.Second}, {"decode", 3 * time.Second}} {
		s := spans[p.name]
		if s.Parent.SpanID() != request.SpanContext.SpanID() || !s.StartTime.Equal(at) || !s.EndTime.Equal(at.Add(p.took)) {
			t.Errorf("%s is %v to %v below %s, want %v to %v below %s", p.name, s.StartTime, s.EndTime,
				s.Parent.SpanID(), at, at.Add(p.took), request.SpanContext.SpanID())
		}
		at = at.Add(p.took)
	}
	attributes := attribute.NewSet(spans["decode"].Attributes...)
	if v, ok := attributes.Value("shoal.exchange_wait_seconds"); !ok || v.AsFloat64() != 1 {
		t.Errorf("decode has %v of exchanges", spans["decode"].Attributes)
	}
	step, node := spans["step"], spans["node n0"]
	if len(step.Links) != 1 || step.Links[0].SpanContext.SpanID() != request.SpanContext.SpanID() {
		t.Errorf("the step has links %v", step.Links)
	}
	if node.Parent.SpanID() != step.SpanContext.SpanID() || !node.EndTime.Equal(began.Add(4*time.Millisecond)) {
		t.Errorf("the node's part: %+v", node)
	}
	if err := tr.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestCollector: spans are sent over OTLP to the address of the flag or of the standard variables.
func TestCollector(t *testing.T) {
	for i := range 2 {
		got := tracingtest.New(t)
		endpoint := []string{got.URL, ""}[i]
		if endpoint == "" {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", got.URL)
			t.Setenv("OTEL_SERVICE_NAME", "harbour")
		}
		if Enabled() != (i == 1) {
			t.Errorf("enabled by the environment: %v", Enabled())
		}
		tr, err := Start(t.Context(), endpoint, "v9", quiet)
		if err != nil {
			t.Fatal(err)
		}
		tr.Request(httptest.NewRequest(http.MethodGet, "/x", nil), "/x", "req-9").End(500)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := tr.Close(ctx); err != nil {
			t.Error(err)
		}
		cancel()
		if len(got.Paths) != 1 || got.Paths[0] != "/v1/traces" || got.Headers[0].Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("the collector was called at %v with %v", got.Paths, got.Headers)
		}
		for _, want := range []string{"GET /x", "req-9", "v9", [...]string{"shoal", "harbour"}[i]} {
			if !strings.Contains(got.Text(), want) {
				t.Errorf("no %q in the sent messages", want)
			}
		}
	}
	for _, bad := range []string{"127.0.0.1:4318", "ftp://x", "http://"} {
		if _, err := Start(t.Context(), bad, "", quiet); err == nil || !strings.Contains(err.Error(), "http://HOST:PORT") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// BenchmarkOff measures the cost per request without a collector.
func BenchmarkOff(b *testing.B) {
	var t *Tracer
	hr := httptest.NewRequest(http.MethodPost, "/x", nil)
	for b.Loop() {
		r := t.Request(hr, "/x", "id")
		r.Begins("s")
		r.Sequence(Sequence{})
		t.StepDue(time.Time{})
		r.End(200)
	}
}
