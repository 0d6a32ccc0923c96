package migrate

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/patch"
	"github.com/stack-controller/stack-controller/internal/shard"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/operator"
)

const (
	controllerNamespace = "flux-system"
	patience            = 60 * time.Second
	pollInterval        = 50 * time.Millisecond
)

var (
	cluster *controlplane.ControlPlane
	// admin may do everything, as the user has to who hands objects back.
	admin client.Client
)

func TestMain(m *testing.M) {
	os.Exit(controlplane.RunTests(m, controlplane.Options{
		CRDs: []string{controlplane.ProductCRDs()}, WithControllerManager: true,
	}, func(cp *controlplane.ControlPlane) (err error) {
		cluster = cp
		if admin, err = newClient(cp.Config()); err != nil {
			return err
		}
		if err = admin.Create(context.Background(), &corev1.Namespace{Name: controllerNamespace}); err != nil {
			return err
		}
		released := &coordinationv1.Lease{Namespace: controllerNamespace, Name: shard.Lease("")}
		return admin.Create(context.Background(), released)
	}))
}

func newClient(config *rest.Config) (client.Client, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, pulumiv1.AddToScheme, autov1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	config = rest.CopyConfig(config)
	config.WarningHandler = rest.NoWarnings{}
	config.QPS = -1
	return client.New(config, client.Options{Scheme: scheme})
}

// fixture is a namespace that both controllers have written to.
type fixture struct {
	*WithT
	t         *testing.T
	ctx       context.Context
	namespace string
	operator  operator.Operator
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	g.SetDefaultEventuallyPollingInterval(pollInterval)
	namespace := &corev1.Namespace{GenerateName: "back-"}
	g.Expect(admin.Create(t.Context(), namespace)).To(Succeed())
	return &fixture{WithT: g, t: t, ctx: t.Context(), namespace: namespace.Name, operator: operator.Operator{Client: admin}}
}

// run hands the namespace back, and returns what is printed.
func (s *fixture) run(changes ...func(*Options)) (string, error) {
	return s.runFor(patience, changes...)
}

// runFor is like run, with a time limit.
func (s *fixture) runFor(limit time.Duration, changes ...func(*Options)) (string, error) {
	var out strings.Builder
	options := Options{
		Client: admin, Namespace: s.namespace, Out: &out, PollInterval: pollInterval,
		ControllerNamespace: controllerNamespace,
	}
	for _, change := range changes {
		change(&options)
	}
	ctx, cancel := context.WithTimeout(s.ctx, limit)
	defer cancel()
	err := Run(ctx, options)
	return out.String(), err
}

func dryRun(options *Options) { options.DryRun = true }

// accept accepts what the operator does with objects of the namespace, as KIND/NAME.
func accept(objects ...string) func(*Options) {
	return func(options *Options) {
		for _, object := range objects {
			kind, name, _ := strings.Cut(object, "/")
			options.Accept = append(options.Accept, kind+"/"+options.Namespace+"/"+name)
		}
	}
}

// stack creates a Stack with a status of the operator, and then replaces it by a status of this controller.
func (s *fixture) stack(name string, source func(*pulumiv1.StackSpec), status func(*pulumiv1.Stack)) *pulumiv1.Stack {
	s.t.Helper()
	stack := &pulumiv1.Stack{
		Namespace: s.namespace, Name: name, Finalizers: []string{pulumiv1.Finalizer},
		Spec: pulumiv1.StackSpec{Stack: "dev", Backend: "s3://state.example.com"},
	}
	if source != nil {
		source(&stack.Spec)
	}
	s.Expect(admin.Create(s.ctx, stack, client.FieldOwner("kubectl"))).To(Succeed())
	operator.MarkReady(stack)
	stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: name + "-193a0f", Generation: 1}
	s.Expect(s.operator.SaveStatus(s.ctx, stack)).To(Succeed())
	s.write(stack, func() {
		stack.Status.CurrentUpdate, stack.Status.Conditions = nil, nil
		status(stack)
	})
	return stack
}

// write changes the status as this controller does.
func (s *fixture) write(object client.Object, change func()) {
	s.t.Helper()
	before := object.DeepCopyObject().(client.Object)
	change()
	locked := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	s.Expect(admin.Status().Patch(s.ctx, object, locked, patch.FieldOwner)).To(Succeed())
}

func (s *fixture) read(object client.Object) {
	s.t.Helper()
	s.Expect(admin.Get(s.ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
}
