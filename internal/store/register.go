package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shoal-llm/shoal/topology"
)

const (
	bucket     = "SHOAL"
	claimKey   = "coordinator"
	membersKey = "members" // in a replicated store
)

// bucketRegister is a register in a JetStream key-value bucket. The stream leader answers its
// reads, because the nearest replica may lag.
type bucketRegister struct {
	js jetstream.JetStream
	kv jetstream.KeyValue
}

// openRegister creates or opens the bucket.
func openRegister(ctx context.Context, nc *nats.Conn, replicas int) (*bucketRegister, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("store: JetStream: %w", err)
	}
	// A bucket is a stream of this name. It is created directly, so that direct reads from replicas
	// are disabled.
	_, err = js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: "KV_" + bucket, Subjects: []string{"$KV." + bucket + ".>"}, Description: "placement, epoch and lease of Shoal",
		Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew, MaxMsgsPerSubject: 1,
		MaxBytes: 32 << 20, MaxMsgSize: 1 << 20, DenyDelete: true, AllowRollup: true, AllowDirect: false, Replicas: replicas,
	})
	if err != nil {
		return nil, fmt.Errorf("store: bucket %s: %w", bucket, err)
	}
	kv, err := js.KeyValue(ctx, bucket)
	if err != nil {
		return nil, fmt.Errorf("store: bucket %s: %w", bucket, err)
	}
	return &bucketRegister{js, kv}, nil
}

func (b *bucketRegister) read(ctx context.Context) (c topology.Claim, revision uint64, err error) {
	e, err := b.kv.Get(ctx, claimKey)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return c, 0, nil
	}
	if err != nil {
		return c, 0, fmt.Errorf("store: read the lease: %w", err)
	}
	if err := json.Unmarshal(e.Value(), &c); err != nil {
		return c, 0, fmt.Errorf("store: the record of the lease does not decode: %w", err)
	}
	return c, e.Revision(), nil
}

func (b *bucketRegister) write(ctx context.Context, c topology.Claim, after uint64) (uint64, error) {
	data, err := json.Marshal(c)
	if err != nil {
		return 0, fmt.Errorf("store: %w", err)
	}
	revision, err := b.kv.Update(ctx, claimKey, data, after) // after 0: the key must not exist
	var api *jetstream.APIError
	if errors.As(err, &api) &&
		(api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant) {
		return 0, fmt.Errorf("%w: %v", errMoved, err)
	}
	if err != nil {
		return 0, fmt.Errorf("store: write the lease: %w", err)
	}
	return revision, nil
}

// members returns the recorded plan and its bucket revision; nil: none is recorded.
func (b *bucketRegister) members(ctx context.Context) (*plan, uint64, error) {
	e, err := b.kv.Get(ctx, membersKey)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("store: read the members of the store: %w", err)
	}
	p := new(plan)
	if err := json.Unmarshal(e.Value(), p); err != nil {
		return nil, 0, fmt.Errorf("store: the members of the store do not decode: %w", err)
	}
	return p, e.Revision(), nil
}

// record stores a plan that follows the recorded one. Requests during a leader election are lost,
// so it retries and checks whether the plan is stored.
func (b *bucketRegister) record(ctx context.Context, p *plan) error {
	data, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	for {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, electionLimit)
			defer cancel()
			was, revision, err := b.members(ctx)
			switch {
			case err != nil:
				return err
			case was != nil && was.Revision == p.Revision && slices.Equal(was.Members, p.Members):
				return nil
			case was != nil && was.Revision >= p.Revision:
				return fmt.Errorf("%w: the members were changed meanwhile; check them and retry", ErrMembers)
			}
			if _, err := b.kv.Update(ctx, membersKey, data, revision); err != nil {
				return fmt.Errorf("store: write the members of the store: %w", err)
			}
			return nil
		}()
		if err == nil || errors.Is(err, ErrMembers) || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(electionTick):
		case <-ctx.Done():
			return err
		}
	}
}

// copies returns the number of up-to-date replicas of the stream that has the fewest. It uses the
// JetStream API directly, because nats.go does not show which replicas are still pending and have
// no vote.
func (b *bucketRegister) copies(ctx context.Context) (least int, err error) {
	var list struct {
		Error   *jetstream.APIError `json:"error"`
		Streams []struct {
			Cluster struct {
				Leader   string `json:"leader"`
				Replicas []struct{ Current, Offline, Pending bool }
			}
		}
	}
	reply, err := b.js.Conn().RequestWithContext(ctx, "$JS.API.STREAM.LIST", nil)
	if err == nil {
		err = json.Unmarshal(reply.Data, &list)
	}
	if err == nil && list.Error != nil {
		err = list.Error
	}
	if err != nil {
		return 0, fmt.Errorf("store: copies of the store: %w", err)
	}
	least = wanted
	for _, s := range list.Streams {
		n := 0
		if s.Cluster.Leader != "" {
			n++
		}
		for _, p := range s.Cluster.Replicas {
			if p.Current && !p.Offline && !p.Pending {
				n++
			}
		}
		least = min(least, n)
	}
	return least, nil
}
