package weights

import (
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/wire/wiretest"
)

// TestWire records the chunk sizes of a checkpoint and the name of its file list.
func TestWire(t *testing.T) {
	list := &proto.WeightsReply{ModelHash: "model",
		Files: []*proto.WeightsFile{{Name: "config.json", Size: 7, Head: 7, Digest: []byte("digest")}}}
	wiretest.Check(t, wiretest.Form{Name: "actor", Text: actorName},
		wiretest.Form{Name: "pieces", Text: fmt.Sprintln(chunkBytes, chunksPerReply, hashesPerReply)},
		wiretest.Form{Name: "hash of a list", Text: listHash(list)})
}
