package topology

// Standing is what a node says when it is asked how far it is. What it means for a
// step or a load is decided here, for the coordinator and for package sim alike.
type Standing struct {
	Epoch    uint32
	Step     uint64 // the newest one that it has begun
	Loading  bool
	Stepping bool
	Busy     bool   // its executor has something in hand
	Finished uint64 // jobs of its executor: in a step since its beginning, else since ever
	Loaded   uint64 // bytes read or fetched
}

// InStep is its progress in a step; nil: it did not say. A node that has left the
// step behind is done with it, be it with an error.
func (s *Standing) InStep(epoch uint32, step uint64) Progress {
	switch {
	case s == nil:
		return Progress{Silent: true}
	case s.Epoch != epoch || s.Step == step && !s.Stepping:
		return Progress{Done: true}
	case s.Step != step: // it has not begun
		return Progress{Busy: s.Busy}
	}
	return Progress{Busy: s.Busy, Finished: s.Finished}
}

// InLoad is its progress in the load of an epoch; nil: it did not say. What a node
// does before the load is in its executor's hands counts as well, since the load
// comes behind it.
func (s *Standing) InLoad(epoch uint32) LoadProgress {
	if s == nil {
		return LoadProgress{Silent: true}
	}
	return LoadProgress{Done: s.Epoch > epoch || s.Epoch == epoch && !s.Loading, Moved: s.Loaded + s.Finished}
}
