package natsbus

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// storePeer returns the id of a server among the members of a store: a hash of its name. The other
// members may list a server that is away for long by that id alone.
func storePeer(name string) string {
	const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	sum := sha256.Sum256([]byte(name))
	for i, b := range sum {
		sum[i] = digits[int(b)%len(digits)]
	}
	return string(sum[:8])
}

// StoreMembers counts the servers of a store as JetStream does, this one included, and lists
// members that are not in names. The store works while more than half of its members do.
func (s *Server) StoreMembers(names []string) (count int, others []string, err error) {
	if s.ns == nil || s.cfg.StoreDir == "" {
		return 0, nil, fmt.Errorf("%w: this server has no store", ErrConfig)
	}
	info, err := s.ns.Jsz(nil)
	if err == nil && (info.Meta == nil || info.Meta.Leader == "") {
		err = errors.New("no leader is elected")
	}
	if err != nil {
		return 0, nil, fmt.Errorf("natsbus: members of the store: %w", err)
	}
	ours := map[string]bool{}
	for _, n := range names {
		ours[storePeer(n)] = true
	}
	for _, p := range info.Meta.Replicas {
		if !ours[p.Peer] {
			others = append(others, p.Peer)
		}
	}
	return 1 + len(info.Meta.Replicas), others, nil
}

// RetainStoreMembers removes every server that is not in names from a store. A removed server no longer
// counts for the majority, and another server gets its copies once there is one. A majority of the
// members must be up. A removed server may return under its name after five minutes.
func (s *Server) RetainStoreMembers(ctx context.Context, names []string) error {
	_, others, err := s.StoreMembers(names)
	if err == nil && len(others) == 0 {
		return nil
	}
	nc, forget, err := s.connectAs("store", &server.User{Account: s.ns.SystemAccount()})
	if err != nil {
		return err
	}
	defer forget()
	defer nc.Close()
	for { // requests are lost until the servers have elected a leader
		_, others, err := s.StoreMembers(names)
		if err == nil && len(others) == 0 {
			return nil
		}
		for _, peer := range others {
			err = errors.Join(err, removeMember(ctx, nc, peer))
		}
		select {
		case <-time.After(storeRequestTimeout / 10):
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
}

// storeRequestTimeout bounds one request to the servers of a store.
const storeRequestTimeout = 2 * time.Second

func removeMember(ctx context.Context, nc *nats.Conn, peer string) error {
	ctx, cancel := context.WithTimeout(ctx, storeRequestTimeout)
	defer cancel()
	body, err := json.Marshal(server.JSApiMetaServerRemoveRequest{Peer: peer})
	if err != nil {
		return err
	}
	var r server.JSApiMetaServerRemoveResponse
	reply, err := nc.RequestWithContext(ctx, server.JSApiRemoveServer, body)
	if err == nil {
		err = json.Unmarshal(reply.Data, &r)
	}
	if err == nil && r.Error != nil {
		err = r.Error
	}
	if err != nil {
		return fmt.Errorf("natsbus: remove %s from the store: %w", peer, err)
	}
	return nil
}
