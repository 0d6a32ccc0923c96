package controlplane

import (
	"context"

	"github.com/stack-controller/stack-controller/tests/supervise"
)

// Program is a controller that runs beside the control plane and ends with it.
type Program struct {
	// Name is how errors call it, and the name of its log.
	Name string
	// Path is the executable.
	Path string
	// Args gives the arguments for two free addresses, host:port, one for metrics and one for health.
	Args func(metrics, health string) []string
	// Env is added to HOME, TMPDIR and PATH, which is all that it gets otherwise.
	Env []string
}

// StartProgram starts a controller and returns when http://HEALTH/readyz answers.
func (cp *ControlPlane) StartProgram(ctx context.Context, program Program) (*supervise.Process, error) {
	return cp.run(ctx, program.Name, program.Path, func() (launch, error) {
		addresses, err := cp.freeAddresses(2)
		if err != nil {
			return launch{}, err
		}
		metrics, health := addresses[0], addresses[1]
		return launch{
			args:  program.Args(metrics, health),
			env:   program.Env,
			ready: cp.AnswersOK("http://" + health + "/readyz"),
		}, nil
	})
}
