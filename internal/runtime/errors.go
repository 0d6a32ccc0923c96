package runtime

import "errors"

// ErrNoAgent is returned by Connect when the workspace has no agent: it was never started, ended, or was removed.
var ErrNoAgent = errors.New("the workspace has no agent")

// ErrEnding is returned by Delete while the agent is being ended and what belongs to it removed. An event follows.
var ErrEnding = errors.New("the agent is ending")
