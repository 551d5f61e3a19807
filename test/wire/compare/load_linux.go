package compare

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/test/wire/host"
)

// clientOn returns an HTTP client whose connections start on a host.
func clientOn(name string) *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64,
		DialContext: func(ctx context.Context, network, address string) (c net.Conn, err error) {
			err = host.In(name, func() (err error) {
				c, err = new(net.Dialer).DialContext(ctx, network, address)
				return err
			})
			return c, err
		}}}
}

// complete sends a prompt of random tokens and returns the arrivals of the answer.
func (r *running) complete(ctx context.Context, prompt, tokens, vocab int, seed uint64) ([]arrival, error) {
	random := rand.New(rand.NewPCG(seed, 3))
	ids := make([]int, prompt)
	for i := range ids {
		ids[i] = 300 + random.IntN(vocab-300)
	}
	body, err := json.Marshal(map[string]any{"prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": true, "stream": true})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.api+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	a, err := r.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(a.Body, 1000))
		return nil, fmt.Errorf("%s: %s: %s", r.Name, a.Status, text)
	}
	var out []arrival
	lines := bufio.NewScanner(a.Body)
	for lines.Scan() {
		text, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || text == "[DONE]" {
			continue
		}
		var chunk struct {
			Choices []struct{ Text string }
			Error   json.RawMessage
		}
		if err := json.Unmarshal([]byte(text), &chunk); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", r.Name, err, text)
		}
		if chunk.Error != nil {
			return nil, fmt.Errorf("%s: %s", r.Name, chunk.Error)
		}
		if len(chunk.Choices) > 0 && chunk.Choices[0].Text != "" {
			out = append(out, arrival{time.Now(), max(1, len(chunk.Choices[0].Text)/wordLength)})
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: an answer without tokens", r.Name)
	}
	return out, nil
}

// decode runs rows sequences together and returns the time of a step: from when all have begun to when
// the first ends.
func (r *running) decode(ctx context.Context, rows, prompt, tokens, vocab int, seed uint64) (time.Duration, error) {
	type result struct {
		arrivals []arrival
		err      error
	}
	results := make(chan result, rows)
	for i := range rows {
		go func() {
			a, err := r.complete(ctx, prompt, tokens, vocab, seed+uint64(i))
			results <- result{a, err}
		}()
	}
	var all [][]arrival
	var err error
	for range rows {
		x := <-results
		all, err = append(all, x.arrivals), errors.Join(err, x.err)
	}
	if err != nil {
		return 0, err
	}
	return stepTime(all)
}

// read returns the time to the first token of one prompt.
func (r *running) read(ctx context.Context, prompt, vocab int, seed uint64) (time.Duration, error) {
	began := time.Now()
	a, err := r.complete(ctx, prompt, 1, vocab, seed)
	if err != nil {
		return 0, err
	}
	return a[0].at.Sub(began), nil
}
