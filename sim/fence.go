package sim

import "shoal/actors/socket"

// realFence is the fence of a socket as it is.
type realFence struct{ socket.State }

func (f *realFence) Now() socket.State { return f.State }

// noFence is a mutant: every epoch is taken for the present one.
type noFence struct{ socket.State }

func (f *noFence) Now() socket.State { return f.State }

func (f *noFence) Load(epoch uint32) error {
	f.State = socket.State{Phase: socket.Loading, Epoch: epoch}
	return nil
}
func (f *noFence) Loaded(_ uint32, ok bool) error { return f.State.Loaded(f.Epoch, ok) }
func (f *noFence) Join(uint32) error              { return f.State.Join(f.Epoch) }
func (f *noFence) Joined(_ uint32, ok bool) error { return f.State.Joined(f.Epoch, ok) }
func (f *noFence) Begin(uint32, uint64) error     { return f.State.Begin(f.Epoch, f.Step+1) }
func (f *noFence) End(_ uint32, ok bool) error    { return f.State.End(f.Epoch, ok) }
func (f *noFence) Retire(uint32) bool             { return f.State.Retire(f.Epoch) }

func newFence(b Bug) fence {
	if b == NoFence || b == NoSocketFence {
		return &noFence{socket.State{Phase: socket.Idle}}
	}
	return &realFence{socket.State{Phase: socket.Idle}}
}
