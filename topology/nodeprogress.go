package topology

// NodeProgress is a node's report of its progress. Its meaning for a step or a load is decided here,
// for the coordinator and for package sim.
type NodeProgress struct {
	Epoch    uint32
	Step     uint64 // the newest step that it has begun
	Loading  bool
	Stepping bool
	Busy     bool   // its executor runs a job
	Finished uint64 // jobs of its executor: in a step since its beginning, otherwise in total
	Loaded   uint64 // bytes read or downloaded
}

// InStep returns the node's progress in a step. nil means that it did not answer. A node that has left
// the step is done with it, even if by an error.
func (s *NodeProgress) InStep(epoch uint32, step uint64) Progress {
	switch {
	case s == nil:
		return Progress{Silent: true}
	case s.Epoch != epoch || s.Step == step && !s.Stepping:
		return Progress{Done: true}
	case s.Step != step: // not begun
		return Progress{Busy: s.Busy}
	}
	return Progress{Busy: s.Busy, Finished: s.Finished}
}

// InLoad returns the node's progress in the load of an epoch. nil means that it did not answer. Jobs
// that its executor runs before the load count as progress, since the load waits for them.
func (s *NodeProgress) InLoad(epoch uint32) LoadProgress {
	if s == nil {
		return LoadProgress{Silent: true}
	}
	return LoadProgress{Done: s.Epoch > epoch || s.Epoch == epoch && !s.Loading, Moved: s.Loaded + s.Finished}
}
