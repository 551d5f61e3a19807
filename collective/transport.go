package collective

// Transport carries messages between the ranks of one group in one epoch.
//
// Delivery is at most once, and loss is silent. Messages of one source usually arrive in order, but
// need not. Broadcast and Send may be called concurrently, may block for back-pressure, and do not
// keep msg. An error means that the message was certainly not sent; the group then fails.
//
// Receive is called once, by NewGroup. The function that it sets is called from goroutines of the
// transport, possibly several at once, or from the goroutine that polls ([Poller]). src is the rank
// that the transport itself attests (by subject or socket), not the one in the message. msg belongs to
// the receiver, who must not write to it, since several may share the buffer. Messages that arrive
// before Receive are held, up to a bound.
//
// Close stops delivery. It may be called from the receive function, so it does not wait for that
// function to return.
type Transport interface {
	Broadcast(msg []byte) error
	Send(dst int, msg []byte) error
	Receive(func(src int, msg []byte))
	Close() error
}

// Recycler is implemented by transports that reuse delivered buffers. The group returns each
// message once, when it no longer reads it.
type Recycler interface{ Recycle(msg []byte) }

// Notifier is implemented by transports that detect losses and dead connections. The group fails
// with the first reported error.
type Notifier interface{ OnError(func(error)) }

// Poller is implemented by transports that can deliver on the goroutine that waits for messages. Polls
// reports whether all further messages can be delivered that way. Poll delivers the messages that have
// arrived. From the first Poll until Rest the transport may deliver on no other goroutine, so the
// caller must soon call Poll again, or Rest. All calls come from one goroutine.
type Poller interface {
	Polls() bool
	Poll()
	Rest()
}
