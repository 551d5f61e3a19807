// Package sessions keeps conversations between their turns: the tokens of every turn, and the messages
// of chats. It has no caches. A cache that is lost is computed again from the turns.
//
//	Turn      the additions of one turn, and its form on disk
//	State     the fold of the turns, in pure code
//	Book      all sessions of a server, with their limits
//	Continue  the text of the next turn of a chat
package sessions
