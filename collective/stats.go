package collective

// Drop is why a message was dropped without effect.
type Drop uint8

const (
	DropNone        Drop = iota
	DropMalformed        // shorter than a header, or lengths disagree
	DropVersion          // other magic, version or checksum mode
	DropChecksum         // damaged on the way
	DropSource           // the header names another rank than the transport does, or an unknown one
	DropSize             // other number of ranks
	DropEpoch            // other epoch
	DropIncarnation      // an earlier or later life of that rank
	DropStale            // the operation is over here
	DropDuplicate        // this chunk has been received
	DropFailed           // the group has failed or was closed
	dropReasons
)

// Stats counts since the group was made. Bytes are whole messages.
type Stats struct {
	Ops                             uint64 // completed without error
	InFlight                        int    // started, not completed
	MessagesSent, BytesSent         uint64 // a broadcast counts once
	MessagesReceived, BytesReceived uint64
	Dropped                         [dropReasons]uint64 // by Drop
	StashedOps                      int                 // operations of which a peer is ahead, now
	StashedBytes, StashedBytesPeak  int
	Failed                          bool
}
