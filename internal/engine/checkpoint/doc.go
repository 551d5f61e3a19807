// Package checkpoint opens the files of a model: it checks them against the description that package
// model reads from their config, and maps their tensors. It computes nothing. Callers do not check
// again what it returns.
package checkpoint

import _ "github.com/shoal-llm/shoal/internal/engine/model/encoder" // registers encoders
