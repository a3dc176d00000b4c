// SPDX-License-Identifier: Apache-2.0
// Small MPI program for the tests of `bench app`: sums a series on all ranks, and prints its rate on rank 0.
// Declares what it needs of Open MPI by hand, because the tests' machines have its library but not its headers.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern char ompi_mpi_comm_world[], ompi_mpi_double[], ompi_mpi_op_sum[];
int MPI_Init(int *, char ***);
int MPI_Finalize(void);
int MPI_Barrier(void *);
int MPI_Comm_rank(void *, int *);
int MPI_Comm_size(void *, int *);
int MPI_Allreduce(const void *, void *, int, void *, void *, void *);
double MPI_Wtime(void);

// Usage: app_kit TERMS [RANKS-THAT-FAIL]
int main(int count, char **words) {
    int rank, world;
    MPI_Init(&count, &words);
    MPI_Comm_rank(ompi_mpi_comm_world, &rank);
    MPI_Comm_size(ompi_mpi_comm_world, &world);
    long terms = atol(words[1]);
    if (count > 2 && atoi(words[2]) == world) {
        fprintf(stderr, "not enough memory on %d ranks\n", world);
        _exit(3);
    }
    MPI_Barrier(ompi_mpi_comm_world);
    double began = MPI_Wtime(), mine = 0, sum = 0;
    for (long i = rank; i < terms; i += world) {
        double x = (i + 0.5) / terms;
        mine += 4 / (1 + x * x);
    }
    MPI_Allreduce(&mine, &sum, 1, ompi_mpi_double, ompi_mpi_op_sum, ompi_mpi_comm_world);
    double seconds = MPI_Wtime() - began;
    if (rank == 0) printf("pi %.6f on %d ranks\nrate: %.3f Mterms/s\n", sum / terms, world, terms / seconds / 1e6);
    MPI_Finalize();
    return 0;
}
