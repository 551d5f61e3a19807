package api

import (
	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/server/ollama"
	"github.com/shoal-llm/shoal/internal/server/openai"
	"github.com/shoal-llm/shoal/internal/server/vectors"
)

// The names under which the cluster, the jobs and the command line use the packages of the
// server, so that they import this one alone.

// The contract with an engine.
type (
	Engine        = engine.Engine
	Request       = engine.Request
	Event         = engine.Event
	Adapter       = engine.Adapter
	PromptLogprob = engine.PromptLogprob
	Timings       = engine.Timings
	Drafts        = engine.Drafts
	DraftStep     = engine.DraftStep
	Tokenizer     = engine.Tokenizer
	ChatTemplate  = engine.ChatTemplate
	ErrOverloaded = apierr.ErrOverloaded
	ErrDegraded   = apierr.ErrDegraded
	ErrNotReady   = apierr.ErrNotReady
	ErrTooLong    = apierr.ErrTooLong
	ErrInvalid    = apierr.ErrInvalid
	ErrFailed     = apierr.ErrFailed
)

// Finish values of the last event of a sequence, and the token of an event that carries none.
const (
	FinishStop      = engine.FinishStop
	FinishLength    = engine.FinishLength
	FinishError     = engine.FinishError
	FinishCancelled = engine.FinishCancelled
	NoToken         = engine.NoToken
)

// Routes of other packages.
type (
	Route       = httpserver.Route
	Doc         = httpserver.Doc
	Problem     = apierr.Problem
	EventStream = httpserver.EventStream
	Limits      = jsonbody.Limits
	Key         = httpserver.Key
	ModelCard   = ollama.ModelCard
)

// Roles of a key.
const (
	RoleUser     = httpserver.RoleUser
	RoleOperator = httpserver.RoleOperator
)

// ErrSlowBody means that the body of a request came too slowly, or stopped.
var ErrSlowBody = httpserver.ErrSlowBody

// Functions of the packages below.
var (
	ErrorStatus   = apierr.ErrorStatus
	KeyName       = httpserver.KeyName
	CanRead       = httpserver.CanRead
	OperatorKeys  = httpserver.OperatorKeys
	ParseKeys     = httpserver.ParseKeys
	CheckOrigins  = httpserver.CheckOrigins
	DefaultLimits = jsonbody.DefaultLimits
	FromTokenizer = engine.FromTokenizer
	FromTemplate  = engine.FromTemplate
	ResponseType  = openai.ResponseType
)

// Tasks, and what stores keep.
type (
	Task          = generate.Task
	TaskOptions   = generate.TaskOptions
	TaskDelta     = generate.TaskDelta
	Replay        = generate.Replay
	SequenceTimer = generate.SequenceTimer
	KeptResponse  = generate.KeptResponse
	ContextStore  = generate.ContextStore
	KeptContext   = generate.KeptContext
	ResponseStore = openai.ResponseStore
	ToolCall      = generate.ToolCall
	CallDelta     = generate.CallDelta
)

// Endpoints that a [Task] can be of.
const (
	EndpointCompletions = openai.EndpointCompletions
	EndpointChat        = openai.EndpointChat
	EndpointResponses   = openai.EndpointResponses
	EndpointEmbeddings  = vectors.EndpointEmbeddings
	EndpointRerank      = vectors.EndpointRerank
	EndpointScore       = vectors.EndpointScore
)

// Types that clients read; see [wire].
type (
	ClusterState     = wire.ClusterState
	PrefixCacheState = wire.PrefixCacheState
	PrefixDiskState  = wire.PrefixDiskState
	DraftsState      = wire.DraftsState
	StoreMember      = wire.StoreMember
	StoreState       = wire.StoreState
	NodeState        = wire.NodeState
	SequenceState    = wire.SequenceState
	RecoveryState    = wire.RecoveryState
	Durations        = wire.Durations
	ClusterEvent     = wire.ClusterEvent
	Cost             = wire.Cost
	Sample           = wire.Sample
	Job              = wire.Job
	JobError         = wire.JobError
	JobList          = wire.JobList
	JobEvent         = wire.JobEvent
	JobEnd           = wire.JobEnd
)

// Kinds of events; see [wire.ClusterEvent].
const (
	EventStarted   = wire.EventStarted
	EventTakeover  = wire.EventTakeover
	EventServing   = wire.EventServing
	EventNodeUp    = wire.EventNodeUp
	EventWorks     = wire.EventWorks
	EventUndrained = wire.EventUndrained
	EventRefused   = wire.EventRefused
)
