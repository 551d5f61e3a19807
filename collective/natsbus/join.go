package natsbus

import (
	"context"
	"crypto/sha256"
	"encoding/binary"

	"github.com/shoal-llm/shoal/collective"
)

// Join joins a group over this server: it subscribes, then waits until every pair of ranks has
// received each other's hellos.
func (s *Server) Join(ctx context.Context, group string, epoch uint32, rank int, incarnations []uint32) (collective.Transport, error) {
	t, err := s.Transport(TransportConfig{Group: group, Epoch: epoch, Rank: rank, Size: len(incarnations), Incarnations: incarnations,
		Digest: digest(group, epoch, incarnations)})
	if err != nil {
		return nil, err
	}
	if err := t.Ready(ctx); err != nil {
		_ = t.Close()
		return nil, err
	}
	return t, nil
}

func digest(group string, epoch uint32, incarnations []uint32) [32]byte {
	b := binary.LittleEndian.AppendUint32([]byte(group), epoch)
	for _, i := range incarnations {
		b = binary.LittleEndian.AppendUint32(b, i)
	}
	return sha256.Sum256(b)
}
