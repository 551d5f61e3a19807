package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"

	"github.com/shoal-llm/shoal/client/wire"
)

// Cluster returns the current state of the cluster.
func (c *Client) Cluster(ctx context.Context) (*wire.ClusterState, error) {
	return get[wire.ClusterState](ctx, c, http.MethodGet, "/v1/cluster", nil, nil)
}

// ErrNotReady means that the server answers but does not serve: it waits for nodes, loads, drains, or
// is a standby.
type ErrNotReady struct{ Reason string }

func (e *ErrNotReady) Error() string { return "not serving: " + e.Reason }

// Ready returns nil if the server would accept a request now, and otherwise an [ErrNotReady] with the
// reason. It asks once, whatever RetryTimeout is.
func (c *Client) Ready(ctx context.Context) error {
	resp, err := c.once(ctx, http.MethodGet, "/ready", nil, nil)
	if err == nil {
		return resp.Body.Close()
	}
	return notReady(err)
}

// notReady returns an [ErrNotReady] for an answer with status 503, and any other error unchanged.
func notReady(err error) error {
	var refused *Error
	if !errors.As(err, &refused) || refused.Status != http.StatusServiceUnavailable {
		return err
	}
	var body struct{ Reason string }
	if json.Unmarshal([]byte(refused.Message), &body) == nil && body.Reason != "" {
		return &ErrNotReady{body.Reason}
	}
	return &ErrNotReady{refused.Message}
}

// Events lists the events of the cluster that occurred or changed after a revision; 0: all that the
// server keeps. They are in the order of their newest change.
func (c *Client) Events(ctx context.Context, from uint64) ([]wire.ClusterEvent, error) {
	list, err := get[struct {
		Data []wire.ClusterEvent `json:"data"`
	}](ctx, c, http.MethodGet, fmt.Sprintf("/v1/events?from=%d", from), nil, nil)
	if err != nil {
		return nil, err
	}
	return list.Data, nil
}

// FollowEvents yields events when they occur or change, until the context or the stream ends. The last
// value is an error.
func (c *Client) FollowEvents(ctx context.Context, from uint64) iter.Seq2[wire.ClusterEvent, error] {
	return func(yield func(wire.ClusterEvent, error) bool) {
		err := c.follow(ctx, fmt.Sprintf("/v1/events?from=%d", from), func(data []byte) error {
			var v wire.ClusterEvent
			if err := json.Unmarshal(data, &v); err != nil {
				return fmt.Errorf("client: an event is not JSON: %w", err)
			}
			if !yield(v, nil) {
				return errEnough
			}
			return nil
		})
		if !errors.Is(err, errEnough) {
			yield(wire.ClusterEvent{}, err)
		}
	}
}

var (
	errEnough = errors.New("client: enough")
	// ErrStreamEnded means that the server ended a stream. Repeat the request, there or at a
	// coordinator that took over.
	ErrStreamEnded = errors.New("the server ended the stream: repeat the request, here or at a coordinator that took over")
)

// codeStoreAway is the code of an error that ends a stream while the store of the server does not answer.
const codeStoreAway = "store_unavailable"

// streamError returns the error that the data of an event holds, or nil.
func streamError(data []byte) error {
	var body errorBody
	_ = json.Unmarshal(data, &body) // the caller reports data that is not JSON
	if body.Object != "" || body.Error == nil {
		return nil
	}
	e := &Error{Status: http.StatusOK, Code: body.Error.Code, Param: body.Error.Param, Message: body.Error.Message}
	if e.Code == codeStoreAway {
		return fmt.Errorf("%w (%w)", ErrStreamEnded, e)
	}
	return e
}

// follow reads a stream of events; it never returns nil.
func (c *Client) follow(ctx context.Context, path string, take func([]byte) error) error {
	resp, err := c.do(ctx, http.MethodGet, path, http.Header{"Accept": {"text/event-stream"}}, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	taken := error(nil)
	err = Data(resp.Body, func(data []byte) error {
		if taken = streamError(data); taken == nil {
			taken = take(data)
		}
		return taken
	})
	switch {
	case taken != nil:
		return taken
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("client: an event of %s has more than %d bytes: %w", path, maxLine, err)
	case err != nil:
		return fmt.Errorf("%w (%w)", ErrStreamEnded, err)
	}
	return ErrStreamEnded
}

// Drain starts to move a node's work to the others. At the end, Cluster reports the node as drained.
func (c *Client) Drain(ctx context.Context, node string) error { return c.node(ctx, node, "drain") }

// Undrain lets a drained node take a share again.
func (c *Client) Undrain(ctx context.Context, node string) error {
	return c.node(ctx, node, "undrain")
}

func (c *Client) node(ctx context.Context, node, verb string) error {
	resp, err := c.Do(ctx, http.MethodPost, "/v1/nodes/"+url.PathEscape(node)+"/"+verb, nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
