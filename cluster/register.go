package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"shoal/topology"
)

const (
	bucket   = "SHOAL"
	claimKey = "coordinator"
)

// bucketRegister is a register in a JetStream key-value bucket. Reads are
// answered by the leader of its stream, not by the nearest copy, which may lag.
type bucketRegister struct{ kv jetstream.KeyValue }

// openRegister makes or opens the bucket.
func openRegister(ctx context.Context, nc *nats.Conn, replicas int) (*bucketRegister, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("cluster: JetStream: %w", err)
	}
	// A bucket is a stream of this name; made by hand, for reads that do not lag.
	_, err = js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: "KV_" + bucket, Subjects: []string{"$KV." + bucket + ".>"}, Description: "placement, epoch and lease of Shoal",
		Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew, MaxMsgsPerSubject: 1,
		MaxBytes: 32 << 20, MaxMsgSize: 1 << 20, DenyDelete: true, AllowRollup: true, AllowDirect: false, Replicas: replicas,
	})
	if err != nil {
		return nil, fmt.Errorf("cluster: bucket %s: %w", bucket, err)
	}
	kv, err := js.KeyValue(ctx, bucket)
	if err != nil {
		return nil, fmt.Errorf("cluster: bucket %s: %w", bucket, err)
	}
	return &bucketRegister{kv}, nil
}

func (b *bucketRegister) read(ctx context.Context) (c topology.Claim, revision uint64, err error) {
	e, err := b.kv.Get(ctx, claimKey)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return c, 0, nil
	}
	if err != nil {
		return c, 0, fmt.Errorf("cluster: read the lease: %w", err)
	}
	if err := json.Unmarshal(e.Value(), &c); err != nil {
		return c, 0, fmt.Errorf("cluster: the record of the lease does not decode: %w", err)
	}
	return c, e.Revision(), nil
}

func (b *bucketRegister) write(ctx context.Context, c topology.Claim, after uint64) (uint64, error) {
	data, err := json.Marshal(c)
	if err != nil {
		return 0, fmt.Errorf("cluster: %w", err)
	}
	revision, err := b.kv.Update(ctx, claimKey, data, after) // 0: the key is not there yet
	var api *jetstream.APIError
	if errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant) {
		return 0, fmt.Errorf("%w: %v", errMoved, err)
	}
	if err != nil {
		return 0, fmt.Errorf("cluster: write the lease: %w", err)
	}
	return revision, nil
}
