package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// event is one server-sent event as it stood on the wire.
type event struct {
	data    string // without "data: "
	comment string
	json    M
}

// events reads a stream strictly: every block is one data or comment line and
// a blank line.
func events(t testing.TB, r io.Reader) []event {
	t.Helper()
	raw, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return parseEvents(t, string(raw))
}

func parseEvents(t testing.TB, raw string) []event {
	t.Helper()
	if raw != "" && !strings.HasSuffix(raw, "\n\n") {
		t.Fatalf("stream does not end with a blank line: %q", raw)
	}
	var out []event
	for _, block := range strings.Split(strings.TrimSuffix(raw, "\n\n"), "\n\n") {
		var e event
		var ok bool
		if strings.Contains(block, "\n") {
			t.Fatalf("event of several lines: %q", block)
		}
		if e.data, ok = strings.CutPrefix(block, "data: "); !ok {
			if e.comment, ok = strings.CutPrefix(block, ": "); !ok {
				t.Fatalf("neither data nor comment: %q", block)
			}
		} else if e.data != "[DONE]" {
			if err := json.Unmarshal([]byte(e.data), &e.json); err != nil {
				t.Fatalf("%v in %q", err, e.data)
			}
		}
		out = append(out, e)
	}
	return out
}

func openStream(t testing.TB, ctx context.Context, url string, body M) *http.Response {
	t.Helper()
	body["stream"] = true
	b, _ := json.Marshal(body)
	req, _ := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(string(b)))
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func stream(t testing.TB, url string, body M) []event {
	t.Helper()
	resp := openStream(t, context.Background(), url, body)
	if resp.StatusCode != 200 {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("status %d: %s", resp.StatusCode, b)
	}
	if got := resp.Header.Get("Content-Type"); !strings.HasPrefix(got, "text/event-stream") {
		t.Fatalf("Content-Type %q", got)
	}
	return events(t, resp.Body)
}

func TestChatStreamRules(t *testing.T) {
	url := serve(t, &servertest.Engine{Script: servertest.Hello}) + "/v1/chat/completions"
	for _, withUsage := range []bool{false, true} {
		body := chat(nil)
		if withUsage {
			body["stream_options"] = M{"include_usage": true}
		}
		ev := stream(t, url, body)
		if ev[len(ev)-1].data != "[DONE]" {
			t.Fatalf("last event is %q, not [DONE]", ev[len(ev)-1].data)
		}
		ev = ev[:len(ev)-1]
		var usage M
		if withUsage {
			last := ev[len(ev)-1].json
			if n := len(at(t, last, "choices").([]any)); n != 0 {
				t.Errorf("usage chunk has %d choices", n)
			}
			usage = at(t, last, "usage").(M)
		}
		var text []string
		finishes := 0
		for i, e := range ev {
			for _, k := range []string{"id", "created", "model"} {
				if a, b := at(t, ev[0].json, k), at(t, e.json, k); a != b || a == "" {
					t.Errorf("chunk %d: %s is %v, first chunk has %v", i, k, b, a)
				}
			}
			if o := at(t, e.json, "object"); o != "chat.completion.chunk" {
				t.Errorf("object %v", o)
			}
			u, has := e.json["usage"]
			switch {
			case !withUsage && has:
				t.Errorf("chunk %d has usage unasked", i)
			case withUsage && i < len(ev)-1 && (!has || u != nil):
				t.Errorf("chunk %d: usage is %v, want null", i, u)
			}
			if withUsage && i == len(ev)-1 {
				continue
			}
			c := at(t, e.json, "choices", 0)
			d := at(t, c, "delta").(M)
			if _, role := d["role"]; role != (i == 0) {
				t.Errorf("chunk %d: delta %v: role belongs on the first one", i, d)
			}
			if s, _ := d["content"].(string); s != "" {
				text = append(text, s)
			}
			if f := at(t, c, "finish_reason"); f != nil {
				finishes++
				if f != "stop" {
					t.Errorf("finish_reason %v", f)
				}
			}
		}
		if got := strings.Join(text, "|"); got != "Hello| world|!" { // one token, one chunk
			t.Errorf("chunks %q", got)
		}
		if finishes != 1 {
			t.Errorf("%d finish reasons", finishes)
		}
		if withUsage && (usage["completion_tokens"] != 4.0 || usage["prompt_tokens"] != 6.0 || usage["total_tokens"] != 10.0) {
			t.Errorf("usage %v", usage)
		}
	}
}

func TestContinuousUsage(t *testing.T) {
	url := serve(t, &servertest.Engine{Script: servertest.Hello}) + "/v1/completions"
	ev := stream(t, url, completion(M{"stream_options": M{"include_usage": true, "continuous_usage_stats": true}}))
	for i, want := range []float64{1, 2, 3, 4, 4} {
		if got := at(t, ev[i].json, "usage", "completion_tokens"); got != want {
			t.Errorf("chunk %d: %v completion tokens, want %v", i, got, want)
		}
	}
}

func TestStreamOfNoText(t *testing.T) {
	url := serve(t, &servertest.Engine{Script: servertest.Tokens(engine.FinishStop, servertest.TokEOS)}) + "/v1/chat/completions"
	ev := stream(t, url, chat(nil))
	if len(ev) != 2 {
		t.Fatalf("%d events", len(ev))
	}
	c := at(t, ev[0].json, "choices", 0)
	if at(t, c, "delta", "role") != "assistant" || at(t, c, "delta", "content") != "" || at(t, c, "finish_reason") != "stop" {
		t.Errorf("chunk %v", c)
	}
}

func TestPartialRunesAreHeldBack(t *testing.T) {
	script := servertest.Tokens(engine.FinishLength, 'a', 0xe6, 0x97, 0xa5, 'b', 0xe6)
	url := serve(t, &servertest.Engine{Script: script}) + "/v1/completions"
	ev := stream(t, url, completion(nil))
	var text []string
	for _, e := range ev[:len(ev)-1] {
		text = append(text, at(t, e.json, "choices", 0, "text").(string))
	}
	if got := strings.Join(text, "|"); got != "a|日|b|\uFFFD" {
		t.Errorf("chunks %q", got)
	}
}

func TestStopStringInStream(t *testing.T) {
	e := &servertest.Engine{Delay: time.Millisecond, Hold: servertest.Always, Script: func(r *engine.Request) []engine.Event {
		return append(servertest.Tokens("", servertest.TokOne, 'S', 'T', 'o', servertest.TokTwo, 'S', 'T', 'O', 'P')(r),
			servertest.Tokens(engine.FinishStop, make([]int32, 100)...)(r)...)
	}}
	url := serve(t, e) + "/v1/completions"
	ev := stream(t, url, completion(M{"stop": []string{"STOP", "xyz"}, "max_tokens": 200}))
	var text []string
	for _, e := range ev[:len(ev)-1] {
		text = append(text, at(t, e.json, "choices", 0, "text").(string))
	}
	if got := strings.Join(text, "|"); got != " one|STo| two|" {
		t.Errorf("chunks %q", got)
	}
	last := at(t, ev[len(ev)-2].json, "choices", 0)
	if at(t, last, "finish_reason") != "stop" || at(t, last, "stop_reason") != "STOP" {
		t.Errorf("last choice %v", last)
	}
	e.WaitCancelled(t, 1) // the rest is not generated
}

// A stop string ends its own choice at once, while others continue: here one that ends
// only after it.
func TestStopStringFreesItsChoice(t *testing.T) {
	freed := make(chan struct{})
	free := sync.OnceFunc(func() { close(freed) })
	defer free()
	e := &servertest.Engine{Delay: time.Millisecond, Hold: func(r *engine.Request) bool {
		if strings.HasSuffix(r.ID, "-0") {
			return true
		}
		<-freed
		return false
	}}
	e.Script = func(r *engine.Request) []engine.Event {
		if strings.HasSuffix(r.ID, "-0") {
			return servertest.Tokens(engine.FinishStop, slices.Repeat([]int32{servertest.TokOne, servertest.TokTwo}, 200)...)(r)
		}
		return servertest.Tokens(engine.FinishStop, slices.Repeat([]int32{servertest.TokOne}, 400)...)(r)
	}
	url := serve(t, e) + "/v1/completions"
	resp := openStream(t, context.Background(), url, completion(M{"n": 2, "stop": "two", "max_tokens": 500}))
	e.WaitCancelled(t, 1)
	free()
	e.Mu.Lock()
	who := strings.Join(e.Cancelled, " ")
	e.Mu.Unlock()
	if !strings.HasSuffix(who, "-0") {
		t.Errorf("cancelled: %s", who)
	}
	if ev := events(t, resp.Body); ev[len(ev)-1].data != "[DONE]" {
		t.Error("the other choice did not finish")
	}
}

func TestKeepAliveWhileThePromptIsRead(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello, Gate: make(chan struct{})}
	url := serve(t, e, func(c *Config) { c.KeepAlive = 5 * time.Millisecond }) + "/v1/chat/completions"
	resp := openStream(t, context.Background(), url, chat(nil))
	r := bufio.NewReader(resp.Body)
	for range 2 {
		if line, err := r.ReadString('\n'); err != nil || line != ": keep-alive\n" {
			t.Fatalf("%q %v", line, err)
		}
		if blank, _ := r.ReadString('\n'); blank != "\n" {
			t.Fatalf("%q after the comment", blank)
		}
	}
	close(e.Gate)
	ev := events(t, r)
	if ev[len(ev)-1].data != "[DONE]" {
		t.Error("no [DONE]")
	}
}

func TestLateFailureEndsWithoutDone(t *testing.T) {
	for name, script := range map[string]func(*engine.Request) []engine.Event{
		"error": func(*engine.Request) []engine.Event {
			return []engine.Event{
				{Token: servertest.TokOne},
				{Token: engine.NoToken, Finish: engine.FinishError, Err: errors.New("cluster: node 3 died")},
			}
		},
		"cancelled": func(*engine.Request) []engine.Event {
			return []engine.Event{{Token: servertest.TokOne}, {Token: engine.NoToken, Finish: engine.FinishCancelled}}
		},
		"closed": func(*engine.Request) []engine.Event { return []engine.Event{{Token: servertest.TokOne}} },
		"overrun": func(r *engine.Request) []engine.Event {
			return servertest.Tokens("", servertest.TokOne, servertest.TokOne, servertest.TokOne, servertest.TokOne)(r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := &servertest.Engine{Script: script}
			if name == "overrun" {
				e.Refuse = func(r *engine.Request) error { r.MaxTokens = 99; return nil } // breaks its word
			}
			url := serve(t, e) + "/v1/chat/completions"
			ev := stream(t, url, chat(M{"max_tokens": 3}))
			last := ev[len(ev)-1]
			if last.data == "[DONE]" || last.json["error"] == nil {
				t.Fatalf("last event %q", last.data)
			}
			if at(t, last.json, "error", "message") == "" || at(t, last.json, "error", "type") != "server_error" {
				t.Errorf("error %v", last.json)
			}
			if name == "error" && !strings.Contains(last.data, "node 3 died") {
				t.Errorf("no reason in %s", last.data)
			}
		})
	}
}

func TestEarlyFailureHasAStatus(t *testing.T) {
	script := func(*engine.Request) []engine.Event {
		return []engine.Event{{Token: engine.NoToken, Finish: engine.FinishError, Err: errors.New("cluster: no nodes")}}
	}
	url := serve(t, &servertest.Engine{Script: script}) + "/v1/chat/completions"
	for _, streaming := range []bool{false, true} {
		a := post(t, url, chat(M{"stream": streaming}))
		if a.status != 500 || a.header.Get("X-Should-Retry") != "false" {
			t.Errorf("status %d, X-Should-Retry %q", a.status, a.header.Get("X-Should-Retry"))
		}
	}
}

func TestDisconnectCancels(t *testing.T) {
	for _, streaming := range []bool{true, false} {
		e := &servertest.Engine{Delay: time.Millisecond, Hold: servertest.Always}
		url := serve(t, e) + "/v1/completions"
		ctx, cancel := context.WithCancel(context.Background())
		b, _ := json.Marshal(completion(M{"max_tokens": 500, "n": 2, "stream": streaming}))
		req, _ := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(string(b)))
		req.Header.Set("Content-Type", "application/json")
		done := make(chan struct{})
		go func() {
			defer close(done)
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}()
		servertest.Eventually(t, "two requests run", func() bool {
			e.Mu.Lock()
			defer e.Mu.Unlock()
			return len(e.Requests) == 2
		})
		time.Sleep(5 * time.Millisecond)
		cancel()
		e.WaitCancelled(t, 2) // they would never end by themselves
		<-done
	}
}

// A client that disconnects during the prefill, when nothing is written, is
// noticed as well.
func TestDisconnectBeforeTheFirstToken(t *testing.T) {
	for _, streaming := range []bool{true, false} {
		e := &servertest.Engine{Gate: make(chan struct{})}
		url := serve(t, e)
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		b, _ := json.Marshal(completion(M{"stream": streaming}))
		io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "+
			strconv.Itoa(len(b))+"\r\n\r\n"+string(b))
		servertest.Eventually(t, "the request runs", func() bool {
			e.Mu.Lock()
			defer e.Mu.Unlock()
			return len(e.Requests) == 1
		})
		conn.Close()
		e.WaitCancelled(t, 1)
	}
}

func TestSlowReaderIsCutOff(t *testing.T) {
	e := &servertest.Engine{}
	url := serve(t, e, func(c *Config) {
		c.MaxModelLen, c.Limits.WriteTimeout = 10_000_000, 100*time.Millisecond
	})
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetReadBuffer(4096)
	b, _ := json.Marshal(completion(M{"stream": true, "max_tokens": 9_000_000}))
	io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "+
		strconv.Itoa(len(b))+"\r\n\r\n"+string(b))
	e.WaitCancelled(t, 1)
}

// A slow reader does not hold up the engine: it takes all tokens while the client does not read.
func TestSlowReaderDoesNotBlockTheEngine(t *testing.T) {
	e := &servertest.Engine{}
	url := serve(t, e, func(c *Config) { c.MaxModelLen = 200_000 }) + "/v1/completions"
	resp := openStream(t, context.Background(), url, completion(M{"max_tokens": 60_000}))
	done := make(chan struct{})
	go func() { e.Live.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(servertest.Timeout):
		t.Fatal("the engine is blocked")
	}
	if ev := events(t, resp.Body); len(ev) != 60_001 {
		t.Errorf("%d events", len(ev))
	}
}
