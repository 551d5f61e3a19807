package collective

// Drop is the reason why a message was dropped.
type Drop uint8

const (
	DropNone        Drop = iota
	DropMalformed        // shorter than a header, or wrong lengths
	DropVersion          // other magic or version
	DropChecksum         // corrupted
	DropSource           // unknown source, or another one than the transport attests
	DropSize             // other number of ranks
	DropEpoch            // other epoch
	DropIncarnation      // other incarnation of that rank
	DropStale            // the operation has ended on this rank
	DropDuplicate        // this chunk was received before
	DropFailed           // the group has failed or was closed
	dropReasons
)

// Stats are counters since NewGroup. Bytes count whole messages.
type Stats struct {
	Ops                             uint64 // completed without error
	InFlight                        int    // started, not completed
	MessagesSent, BytesSent         uint64 // a broadcast counts once
	MessagesReceived, BytesReceived uint64
	Dropped                         [dropReasons]uint64 // by Drop
	StashedOps                      int                 // operations that a peer has started and this rank has not
	StashedBytes, StashedBytesPeak  int
	Failed                          bool
}
