package podstage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

const (
	// stateMount is where workspace pods have the state backend, which all namespaces share.
	stateMount = "/state"
	// StateClaim is the name of the PersistentVolumeClaim for it in the namespace of each app.
	StateClaim = "state"
)

// StateDir is the directory of the state backend on this machine.
func (s *Stage) StateDir() string { return filepath.Join(s.Cluster.Dir, "state") }

// makeStateDir makes a directory that every user of a pod may write.
func makeStateDir(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return fmt.Errorf("create the directory of the state: %w", err)
	}
	if err := os.Chmod(path, 0o777); err != nil {
		return fmt.Errorf("open the directory of the state: %w", err)
	}
	return nil
}

// prepare creates the claim of the state in the namespace of the Stack, and gives the Stack the image and the state.
func (s *Stage) prepare(ctx context.Context, stack *pulumiv1.Stack) error {
	if err := s.ClaimState(ctx, stack.Namespace); err != nil {
		return err
	}
	stack.Spec.WorkspaceTemplate = &pulumiv1.WorkspaceTemplate{Spec: s.WorkspaceSpec()}
	return nil
}

// WorkspaceSpec is a template of Workspaces with the image and the state.
func (s *Stage) WorkspaceSpec() *autov1alpha1.WorkspaceSpec {
	return &autov1alpha1.WorkspaceSpec{
		Image:           s.Images.Pulumi.Reference,
		ImagePullPolicy: corev1.PullIfNotPresent,
		// Half of the default: the pods of all tests that run at once have to fit on a node of two processors.
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m")}},
		PodTemplate: &autov1alpha1.EmbeddedPodTemplateSpec{Spec: &autov1alpha1.EmbeddedPodSpec{PodSpec: corev1.PodSpec{
			Volumes: []corev1.Volume{{Name: "state", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: StateClaim},
			}}},
			Containers: []corev1.Container{{
				Name:         autov1alpha1.PulumiContainerName,
				VolumeMounts: []corev1.VolumeMount{{Name: "state", MountPath: stateMount}},
			}},
		}}},
	}
}

// ClaimState creates a PersistentVolumeClaim for the state in the namespace, and the volume behind it.
func (s *Stage) ClaimState(ctx context.Context, namespace string) error {
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	noClass := ""
	name := "state-" + namespace
	for _, object := range []client.Object{
		&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{
				Capacity:                      size,
				AccessModes:                   modes,
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				ClaimRef:                      &corev1.ObjectReference{Namespace: namespace, Name: StateClaim},
				PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: s.StateDir()}},
			},
		},
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: StateClaim},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes:      modes,
				Resources:        corev1.VolumeResourceRequirements{Requests: size},
				StorageClassName: &noClass,
				VolumeName:       name,
			},
		},
	} {
		if err := s.Client.Create(ctx, object); err != nil {
			return fmt.Errorf("create %T %s: %w", object, client.ObjectKeyFromObject(object), err)
		}
	}
	return nil
}
