package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"syscall"
	"time"

	"github.com/shoal-llm/shoal/client"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/generate"
)

// readyTimeout is how long run and chat wait for a server that is not ready. `shoal up` may have
// just started it, or it may have lost all of its nodes.
const readyTimeout = 30 * time.Second

// waitUntilReady makes a client wait for a server that is not ready, and print the reason to w.
func waitUntilReady(c *client.Client, w io.Writer) *client.Client {
	c.RetryTimeout = readyTimeout
	c.OnRetry = func(why error) { fmt.Fprintf(w, "waiting for the server (at most %v): %v\n", readyTimeout, why) }
	return c
}

// usage is the token count of an answer.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
}

// chunk holds the members that the CLI reads from a streamed chat completion or completion.
type chunk struct {
	Choices []struct {
		Text         string `json:"text"`
		FinishReason string `json:"finish_reason"`
		Delta        struct {
			Content   string               `json:"content"`
			Reasoning string               `json:"reasoning_content"`
			Calls     []generate.CallDelta `json:"tool_calls"`
		} `json:"delta"`
	} `json:"choices"`
	Usage *usage `json:"usage"`
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// streamResult summarizes a stream.
type streamResult struct {
	Calls  []generate.ToolCall
	Reason string
	Usage  usage
	First  time.Duration // time to the first text
	Total  time.Duration

	thoughts io.Writer // nil: thoughts are dropped
	thinking bool      // the newest piece was a thought
}

// think prints a piece of a thought between marks of its own.
func (f *streamResult) think(piece string) {
	if f.thoughts == nil {
		return
	}
	if !f.thinking {
		fmt.Fprintln(f.thoughts, "[thinking]")
	}
	f.thinking = true
	fmt.Fprint(f.thoughts, piece)
}

// endThought prints the mark after a thought.
func (f *streamResult) endThought() {
	if f.thinking {
		fmt.Fprint(f.thoughts, "\n[end of thinking]\n")
	}
	f.thinking = false
}

// stream posts body to path and passes each piece of text to emit. The thoughts of a model that
// thinks before it answers go to thoughts; nil drops them.
func stream(ctx context.Context, c *client.Client, path string, body map[string]any, emit func(string),
	thoughts io.Writer) (streamResult, error) {
	body["stream"], body["stream_options"] = true, map[string]any{"include_usage": true}
	began := time.Now()
	resp, err := c.Do(ctx, http.MethodPost, path, body)
	if err != nil {
		return streamResult{}, err
	}
	defer resp.Body.Close()
	f := streamResult{thoughts: thoughts}
	err = client.Data(resp.Body, func(data []byte) error {
		if string(data) == "[DONE]" {
			f.Total = time.Since(began)
			return io.EOF
		}
		return f.addChunk(data, began, emit)
	})
	switch {
	case errors.Is(err, io.EOF):
		return f, nil
	case err == nil, errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		err = fmt.Errorf("the answer is incomplete: %s closed the connection; ask again when `shoal status` shows that it serves", c.Server)
	}
	return f, err
}

// printIfTruncated prints a note if the token limit ended the answer.
func (f *streamResult) printIfTruncated(w io.Writer) {
	if f.Reason == engine.FinishLength {
		fmt.Fprintf(w, "[cut after %d tokens; -t N raises the limit, up to the model's context]\n", f.Usage.Completion)
	}
}

func (f *streamResult) addChunk(data []byte, began time.Time, emit func(string)) error {
	var k chunk
	if err := json.Unmarshal(data, &k); err != nil {
		return fmt.Errorf("the server sent a chunk that is not JSON: %w", err)
	}
	if k.Error != nil {
		return errors.New(k.Error.Message)
	}
	if k.Usage != nil {
		f.Usage = *k.Usage
	}
	for _, ch := range k.Choices {
		for _, piece := range ch.Delta.Calls {
			if piece.Index == len(f.Calls) {
				f.Calls = append(f.Calls, piece.ToolCall)
			} else if piece.Index >= 0 && piece.Index < len(f.Calls) {
				f.Calls[piece.Index].Function.Arguments += piece.Function.Arguments
			}
		}
		if ch.Delta.Reasoning != "" {
			f.think(ch.Delta.Reasoning)
		}
		if text := ch.Text + ch.Delta.Content; text != "" {
			f.endThought()
			if f.First == 0 {
				f.First = time.Since(began)
			}
			emit(text)
		}
		if ch.FinishReason != "" {
			f.endThought()
			f.Reason = ch.FinishReason
		}
	}
	return nil
}
