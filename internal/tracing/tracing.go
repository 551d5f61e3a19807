// Package tracing exports the timing of requests to an OpenTelemetry collector: queue, prefill and
// decode of each sequence, as children of the span of its HTTP request. Once in a while it also
// exports a step of the cluster, with each node's compute and wait time. A nil Tracer is off: all
// methods return immediately.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/shoal-llm/shoal/internal/lograte"
)

// Tracer creates the spans of one process. Its methods may be called concurrently.
type Tracer struct {
	provider  *sdk.TracerProvider
	tracer    trace.Tracer
	stepEvery time.Duration

	mu        sync.Mutex
	sequences map[string]trace.SpanContext // running sequences, by their engine ids
	lastStep  time.Time
}

// stepEvery is the minimum interval between exported steps. A step takes milliseconds, so a span
// per step would cost more than it is worth.
const stepEvery = time.Second

// Enabled reports whether OpenTelemetry's standard variables enable traces.
func Enabled() bool {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") || os.Getenv("OTEL_TRACES_EXPORTER") == "none" {
		return false
	}
	return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}

// Start sends traces over OTLP (protobuf over HTTP) to endpoint, for example http://127.0.0.1:4318.
// If endpoint is empty, the standard variables OTEL_EXPORTER_OTLP_... name it. These variables also
// set headers, certificates, the service and the sampler.
func Start(ctx context.Context, endpoint, version string, log *slog.Logger) (*Tracer, error) {
	var opts []otlptracehttp.Option
	if endpoint != "" {
		u, err := url.Parse(endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("tracing: %q is not a collector address: want http://HOST:PORT or https://HOST:PORT", endpoint)
		}
		if strings.Trim(u.Path, "/") == "" {
			u.Path = "/v1/traces"
		}
		opts = append(opts, otlptracehttp.WithEndpointURL(u.String()))
	}
	exporter, err := otlptracehttp.New(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	var few lograte.Limiter
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		if ok, leftOut, last := few.Allow("otel", time.Now()); ok {
			log.Warn("sending traces failed", append([]any{"error", err}, lograte.Attrs(leftOut, last)...)...)
		}
	}))
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attribute.String("service.name", "shoal"), attribute.String("service.version", version)), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, errors.Join(fmt.Errorf("tracing: %w", err), exporter.Shutdown(ctx))
	}
	return newTracer(sdk.NewTracerProvider(sdk.WithBatcher(exporter), sdk.WithResource(about)), stepEvery), nil
}

func newTracer(p *sdk.TracerProvider, every time.Duration) *Tracer {
	return &Tracer{provider: p, tracer: p.Tracer("shoal"), stepEvery: every, sequences: map[string]trace.SpanContext{}}
}

// Close sends the remaining spans, until ctx ends.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("tracing: %w", err)
	}
	return nil
}

// Request is the span of an HTTP request; nil is off.
type Request struct {
	tracer *Tracer
	span   trace.Span
	ctx    context.Context //nolint:containedctx // it carries the span to its children, and ends nothing
}

// Request starts the span of a request, as a child of the client's traceparent if there is one.
func (t *Tracer) Request(r *http.Request, route, id string) *Request {
	if t == nil {
		return nil
	}
	ctx := propagation.TraceContext{}.Extract(context.WithoutCancel(r.Context()), propagation.HeaderCarrier(r.Header))
	ctx, span := t.tracer.Start(ctx, r.Method+" "+route, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("http.request.method", r.Method), attribute.String("http.route", route), attribute.String("shoal.request_id", id)))
	return &Request{t, span, ctx}
}

func (r *Request) End(status int) {
	if r == nil {
		return
	}
	r.span.SetAttributes(attribute.Int("http.response.status_code", status))
	if status >= 500 {
		r.span.SetStatus(codes.Error, http.StatusText(status))
	}
	r.span.End()
}

// Begins adds the sequence's trace to the exported steps until Sequence or Forget.
func (r *Request) Begins(id string) {
	if r == nil {
		return
	}
	r.tracer.mu.Lock()
	defer r.tracer.mu.Unlock()
	r.tracer.sequences[id] = r.span.SpanContext()
}

// Discard ends a sequence that has no timings.
func (r *Request) Discard(id string) {
	if r == nil {
		return
	}
	r.tracer.mu.Lock()
	defer r.tracer.mu.Unlock()
	delete(r.tracer.sequences, id)
}

// Sequence has the timings of one sequence of a request.
type Sequence struct {
	ID                     string
	Began                  time.Time
	Queue, Prefill, Decode time.Duration
	Prompt, Cached, Output int // tokens
	Finish                 string
	Steps                  Steps // steps of the cluster during its decode
}

type Steps struct {
	Steps         uint64
	Compute, Wait time.Duration // sums over steps of the slowest node's times; Wait is time in exchanges
	WireBytes     uint64
}

// Sequence exports the phases of a sequence that has ended.
func (r *Request) Sequence(s Sequence) {
	if r == nil {
		return
	}
	r.Discard(s.ID)
	name := attribute.String("shoal.sequence", s.ID)
	at := s.Began
	phase := func(what string, took time.Duration, more ...attribute.KeyValue) {
		_, span := r.tracer.tracer.Start(r.ctx, what, trace.WithTimestamp(at), trace.WithAttributes(append(more, name)...))
		at = at.Add(took)
		span.End(trace.WithTimestamp(at))
	}
	phase("queue", s.Queue)
	phase("prefill", s.Prefill, attribute.Int("gen_ai.usage.input_tokens", s.Prompt), attribute.Int("shoal.cached_tokens", s.Cached))
	phase("decode", s.Decode, attribute.Int("gen_ai.usage.output_tokens", s.Output),
		attribute.String("gen_ai.response.finish_reason", s.Finish),
		attribute.Int64("shoal.steps", int64(s.Steps.Steps)), attribute.Float64("shoal.compute_seconds", s.Steps.Compute.Seconds()),
		attribute.Float64("shoal.exchange_wait_seconds", s.Steps.Wait.Seconds()), attribute.Int64("shoal.wire_bytes", int64(s.Steps.WireBytes)))
}

type Step struct {
	Epoch     uint32
	Number    uint64
	Began     time.Time
	Took      time.Duration
	Rows      int
	Sequences []string // the engine's ids
	Nodes     []Node
}

// Node has one node's times in a step.
type Node struct {
	ID            string
	Compute, Wait time.Duration // Wait is the time in exchanges with other nodes
	WireBytes     uint64
}

// StepDue reports whether the next step must be exported.
func (t *Tracer) StepDue(now time.Time) bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.lastStep) < t.stepEvery {
		return false
	}
	t.lastStep = now
	return true
}

// Step exports a step, in a separate trace with links to its requests.
func (t *Tracer) Step(s Step) {
	if t == nil {
		return
	}
	var links []trace.Link
	t.mu.Lock()
	for _, id := range s.Sequences {
		if c, ok := t.sequences[id]; ok {
			links = append(links, trace.Link{SpanContext: c, Attributes: []attribute.KeyValue{attribute.String("shoal.sequence", id)}})
		}
	}
	t.mu.Unlock()
	ctx, span := t.tracer.Start(context.Background(), "step", trace.WithNewRoot(), trace.WithLinks(links...),
		trace.WithTimestamp(s.Began), trace.WithAttributes(
			attribute.Int64("shoal.epoch", int64(s.Epoch)), attribute.Int64("shoal.step", int64(s.Number)), attribute.Int("shoal.rows", s.Rows),
			attribute.Int("shoal.sequences", len(s.Sequences))))
	for _, n := range s.Nodes {
		_, part := t.tracer.Start(ctx, "node "+n.ID, trace.WithTimestamp(s.Began),
			trace.WithAttributes(attribute.Float64("shoal.compute_seconds", n.Compute.Seconds()),
				attribute.Float64("shoal.exchange_wait_seconds", n.Wait.Seconds()), attribute.Int64("shoal.wire_bytes", int64(n.WireBytes))))
		part.End(trace.WithTimestamp(s.Began.Add(n.Compute + n.Wait)))
	}
	span.End(trace.WithTimestamp(s.Began.Add(s.Took)))
}
