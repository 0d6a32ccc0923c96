package command

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

const (
	// quickstartNamespace is the namespace of the example, and quickstartName the name of its Program and Stack.
	quickstartNamespace = "pulumi-quickstart"
	quickstartName      = "hello"
	// quickstartTimeout includes the time in which a node pulls the image of Pulumi.
	quickstartTimeout = 10 * time.Minute

	// quickstartBreak is a patch for the Program, whose update fails then. In double quotes, all shells take it as it is, also those of Windows. kubectl takes
	// what begins with a brace for JSON, which needs quotes inside.
	quickstartBreak = "program: {configuration: {broken: {}}}"

	stateMount       = "/state"
	passphraseSecret = "pulumi"
	passphraseKey    = "passphrase"
	stateClaim       = "state"
)

// quickstartLabels mark the namespace as one that this program may delete.
var quickstartLabels = map[string]string{
	"app.kubernetes.io/managed-by": fieldOwner, "app.kubernetes.io/part-of": quickstartNamespace,
	"pod-security.kubernetes.io/enforce": "restricted",
}

func (s *session) quickstart() *cobra.Command {
	var image string
	var remove bool
	timeout := quickstartTimeout
	cmd := &cobra.Command{
		Use: "quickstart", Short: "Deploy an example, and see what a Stack looks like",
		Long: "Create the namespace " + quickstartNamespace + " with a Program, a Stack, a volume for its state and a passphrase, wait until\n" +
			"the Stack is deployed, and show it. It needs no account and no provider. With --delete, all of it is deleted again.",
		Args: arguments(cobra.NoArgs),
		RunE: s.onCluster(func(ctx context.Context, c *cluster, _ []string) error {
			if namespace := *s.flags.Namespace; namespace != "" && namespace != quickstartNamespace {
				return failed(exitUsage, "the example is in the namespace %s", quickstartNamespace)
			}
			c.namespace = quickstartNamespace
			if remove {
				return s.endQuickstart(ctx, c, timeout)
			}
			return s.beginQuickstart(ctx, c, image, timeout)
		}),
	}
	cmd.Flags().StringVar(&image, "image", "", "An image with Pulumi, instead of the default one.")
	cmd.Flags().BoolVar(&remove, "delete", false, "Delete the example.")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "The longest time to wait.")
	return cmd
}

func (s *session) beginQuickstart(ctx context.Context, c *cluster, image string, timeout time.Duration) error {
	if err := c.list(ctx, &pulumiv1.StackList{}, client.InNamespace(quickstartNamespace)); err != nil {
		return err // stack-controller is not installed
	}
	switch found, err := c.quickstartNamespace(ctx); {
	case err != nil:
		return err
	case found != nil && isBeingDeleted(found):
		return fmt.Errorf("the namespace %s is being deleted: try again when it is gone", quickstartNamespace)
	case found == nil:
		if err := c.checkStorage(ctx); err != nil {
			return err
		}
		namespace := &corev1.Namespace{Name: quickstartNamespace, Labels: quickstartLabels}
		if err := c.create(ctx, namespace); err != nil {
			return err
		}
	}
	s.log.Step("creating a Program and a Stack in namespace %s", quickstartNamespace)
	for _, object := range quickstartObjects(image) {
		switch err := c.create(ctx, object); {
		case apierrors.IsAlreadyExists(err):
			if err := c.read(ctx, client.ObjectKeyFromObject(object), object); err != nil {
				return err
			}
			if isBeingDeleted(object) {
				return fmt.Errorf("%s %s is being deleted: try again when it is gone", c.kindOf(object), object.GetName())
			}
			s.log.Step("%s is there already", c.kindOf(object)+" "+object.GetName())
		case err != nil:
			return err
		}
	}
	stack, err := s.awaitStack(ctx, c, &pulumiv1.Stack{Namespace: quickstartNamespace, Name: quickstartName}, timeout, "")
	if err != nil {
		return err
	}
	s.log.Success("Stack %s/%s is deployed", quickstartNamespace, quickstartName)
	tree := &treeOf{session: s, cluster: c, limit: treeUpdates}
	root, err := tree.build(ctx, stack)
	if err != nil {
		return err
	}
	s.out.Line("")
	s.out.Tree(root)
	s.out.Line("\nOutputs")
	for _, name := range slices.Sorted(maps.Keys(stack.Status.Outputs)) {
		s.out.Line("  %s: %s", name, stack.Status.Outputs[name].Raw)
	}
	name := invocation(s.Program)
	s.out.Line("\nBreak it, and let it be explained:")
	s.out.Line(`  kubectl patch program %s -n %s --type=merge -p "%s"`, quickstartName, quickstartNamespace, quickstartBreak)
	s.out.Line("  %s explain stack %s -n %s", name, quickstartName, quickstartNamespace)
	s.out.Line("\nDelete it:")
	s.out.Line("  %s quickstart --delete", name)
	return nil
}

// quickstartNamespace returns the namespace of the example, or nil if there is none. A namespace of the same name that somebody else has
// created is an error.
func (c *cluster) quickstartNamespace(ctx context.Context) (*corev1.Namespace, error) {
	namespace := &corev1.Namespace{}
	switch err := c.read(ctx, client.ObjectKey{Name: quickstartNamespace}, namespace); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	case namespace.Labels["app.kubernetes.io/managed-by"] != fieldOwner:
		return nil, fmt.Errorf("the namespace %s exists, and was not created by this command", quickstartNamespace)
	}
	return namespace, nil
}

// defaultClass is the annotation of a StorageClass that claims without a class use. The API server also accepts its former name.
const defaultClass, formerDefaultClass = "storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"

// checkStorage returns an error if the claim of the example would wait for ever: the cluster has no default StorageClass, and no volume for
// this claim. If the user may not list these, it returns nil.
func (c *cluster) checkStorage(ctx context.Context) error {
	classes, volumes := &storagev1.StorageClassList{}, &corev1.PersistentVolumeList{}
	for _, list := range []client.ObjectList{classes, volumes} {
		switch err := c.list(ctx, list); {
		case apierrors.IsForbidden(err):
			return nil
		case err != nil:
			return err
		}
	}
	isDefault := func(class storagev1.StorageClass) bool {
		return class.Annotations[defaultClass] == "true" || class.Annotations[formerDefaultClass] == "true"
	}
	isForClaim := func(volume corev1.PersistentVolume) bool {
		claim := volume.Spec.ClaimRef
		return claim != nil && claim.Namespace == quickstartNamespace && claim.Name == stateClaim
	}
	if slices.ContainsFunc(classes.Items, isDefault) || slices.ContainsFunc(volumes.Items, isForClaim) {
		return nil
	}
	return fmt.Errorf("the cluster has no default StorageClass, which would create the volume for the state. Choose one of 'kubectl get storageclasses': "+
		"'kubectl annotate storageclass NAME %s=true', or create a PersistentVolume for the claim %s/%s", defaultClass, quickstartNamespace, stateClaim)
}

// quickstartObjects returns the objects of the example.
func quickstartObjects(image string) []client.Object {
	claim := &corev1.PersistentVolumeClaim{
		Namespace: quickstartNamespace, Name: stateClaim,
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	secret := &corev1.Secret{Namespace: quickstartNamespace, Name: passphraseSecret, StringData: map[string]string{passphraseKey: rand.Text()}}
	program := &pulumiv1.Program{Namespace: quickstartNamespace, Name: quickstartName}
	program.Program.Config = map[string]apiextensionsv1.JSON{"name": {Raw: []byte(`{"type": "string"}`)}}
	program.Program.Outputs = map[string]apiextensionsv1.JSON{
		"greeting": {Raw: []byte(`"Hello, ${name}!"`)},
		"deployed": {Raw: []byte(`"stack ${pulumi.stack} of project ${pulumi.project}"`)},
	}
	stack := &pulumiv1.Stack{
		Namespace: quickstartNamespace, Name: quickstartName,
		Spec: pulumiv1.StackSpec{
			Stack: "dev", ProgramRef: &pulumiv1.ProgramReference{Name: quickstartName}, Backend: "file://" + stateMount, DestroyOnFinalize: true,
			Config: map[string]apiextensionsv1.JSON{"name": {Raw: []byte(`"world"`)}},
			EnvRefs: map[string]pulumiv1.ResourceRef{"PULUMI_CONFIG_PASSPHRASE": {
				Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: passphraseSecret, Key: passphraseKey},
			}},
			WorkspaceTemplate: &pulumiv1.WorkspaceTemplate{Spec: &autov1alpha1.WorkspaceSpec{
				Image: image,
				PodTemplate: &autov1alpha1.EmbeddedPodTemplateSpec{Spec: &autov1alpha1.EmbeddedPodSpec{
					Volumes: []corev1.Volume{{Name: stateClaim,
						PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: stateClaim}}},
					Containers: []corev1.Container{{
						Name: autov1alpha1.PulumiContainerName, VolumeMounts: []corev1.VolumeMount{{Name: stateClaim, MountPath: stateMount}},
					}},
				}},
			}},
		},
	}
	return []client.Object{secret, claim, program, stack}
}

// endQuickstart deletes the Stack, which destroys what it has deployed, and then the namespace.
func (s *session) endQuickstart(ctx context.Context, c *cluster, timeout time.Duration) error {
	namespace, err := c.quickstartNamespace(ctx)
	if err != nil {
		return err
	}
	if namespace == nil {
		s.log.Success("there is no namespace %s", quickstartNamespace)
		return nil
	}
	for _, object := range []client.Object{&pulumiv1.Stack{Namespace: quickstartNamespace, Name: quickstartName}, namespace} {
		name := c.kindOf(object) + " " + object.GetName()
		s.log.Step("deleting %s", name)
		switch err := c.remove(ctx, object); {
		case apimeta.IsNoMatchError(err): // stack-controller is not installed
			continue
		case err != nil:
			return err
		}
		err := s.await(ctx, timeout, "the end of "+name, func(ctx context.Context) (progress, error) {
			switch err := c.read(ctx, client.ObjectKeyFromObject(object), object); {
			case apierrors.IsNotFound(err):
				return progress{done: true}, nil
			case err != nil:
				return progress{}, err
			}
			if stack, ok := object.(*pulumiv1.Stack); ok {
				return c.progressOf(ctx, stack), nil
			}
			return progress{state: "waiting for the end of " + name}, nil
		})
		if err != nil {
			return err
		}
	}
	s.log.Success("the example is deleted")
	return nil
}
