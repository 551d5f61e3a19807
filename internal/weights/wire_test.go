package weights

import (
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/wire/wiretest"
)

// TestWire records how a checkpoint is cut for the bus, and how its list of files is named.
func TestWire(t *testing.T) {
	list := &proto.WeightsReply{ModelHash: "model", Files: []*proto.WeightsFile{{Name: "config.json", Size: 7, Head: 7, Digest: []byte("digest")}}}
	wiretest.Check(t, wiretest.Form{Name: "actor", Text: actorName},
		wiretest.Form{Name: "pieces", Text: fmt.Sprintln(chunkBytes, chunksPerReply, hashesPerReply)},
		wiretest.Form{Name: "hash of a list", Text: listHash(list)})
}
