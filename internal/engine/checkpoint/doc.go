// Package checkpoint opens the files of a model and maps their tensors. It checks them against the
// description that package model reads from their config, so callers need no further checks.
package checkpoint

import _ "github.com/shoal-llm/shoal/internal/engine/model/encoder" // registers encoders
