package collective

// Transport carries messages between the ranks of one group in one epoch.
//
// Delivery is at most once; loss is silent. Order per source is usual but not
// needed. Broadcast and Send may be called concurrently and may block for
// back-pressure; they do not keep msg after they return. An error means that
// the message was certainly not sent; the group then fails.
//
// Receive is set once, by NewGroup. It is called from goroutines of the
// transport, possibly several at once, or from that of who polls it ([Poller]). src is the rank that the transport
// itself attests (a subject, a socket), not what the message says. msg belongs
// to the receiver, who must not write to it (one buffer may serve several).
// Messages that arrive before Receive is set are held, within a bound.
//
// Close stops delivery; it may be called from inside the receive function, so
// it does not wait for it.
type Transport interface {
	Broadcast(msg []byte) error
	Send(dst int, msg []byte) error
	Receive(func(src int, msg []byte))
	Close() error
}

// Recycler is implemented by transports that want the buffers they delivered
// back. The group calls it once for each message, when it no longer reads it.
type Recycler interface{ Recycle(msg []byte) }

// Notifier is implemented by transports that can tell of losses and dead
// connections. The group fails with the first error it is told.
type Notifier interface{ OnError(func(error)) }

// Poller is implemented by transports that can deliver on the goroutine of who waits for a
// message. Polls says if all that is still to come will come so. Poll takes what has come; from
// then on until Rest the transport may deliver on no other goroutine, so calls follow each other
// within moments, or Rest does. One goroutine calls both.
type Poller interface {
	Polls() bool
	Poll()
	Rest()
}
